"""A lowered network as PyTorch's functions: values, and what each is computed of.

Programs whose forms are known (`felix.frontend.torch_forms`) are opened, so a value may lie inside
of a program. What is not known is a leaf.
"""

from __future__ import annotations

import collections
import dataclasses
import types
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import tvm
from tvm import relax

from felix.frontend import torch_forms
from felix.frontend.rewriting import bindings, operator_name
from felix.network import groups
from felix.torch_calls.form import TorchCall, TorchForm


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Value:
    """A tensor.

    Attributes:
        function: what gives it, a name of `felix.torch_calls.functions`; "" of a leaf.
        operands: values, lists of values, or constants ({"constant": x}).
        options: of the function.
        dtype: its element type, as TVM writes it.
        owner: the variable of `main` whose program computes it; None of a leaf.
        expression: what `main` calls it: a variable or a constant; None inside of a program.
        constant: its value, if it is a scalar that the network has.
    """

    function: str
    operands: tuple[Any, ...]
    options: Mapping[str, Any]
    dtype: str
    owner: Any = None
    expression: Any = None
    constant: float | None = None

    @property
    def sources(self) -> Iterator[Value]:
        """The values among its operands."""
        for operand in self.operands:
            for each in operand if isinstance(operand, list) else [operand]:
                if isinstance(each, Value):
                    yield each


class Graph:
    """The values of a network's `main`.

    Attributes:
        values: those that functions give, in the order of execution.
        order: the variables of `main`, in its order.
        reads: the variables and constants that the binding of each variable reads.
        read_by: the variables whose bindings read each variable; None is the network's result.
        readers: the values that are computed of each value.
    """

    def __init__(self, lowered: tvm.IRModule) -> None:
        self.values: list[Value] = []
        self.order: list[Any] = []
        self.reads: dict[Any, list[Any]] = {}
        self._forms, self._splits = torch_forms.read(lowered), torch_forms.splits(lowered)
        self._of: dict[Any, Value] = {}
        #: variables that are the parts of a tensor: the tensor, and how it is split
        self._parts: dict[Any, tuple[Value, Mapping[str, Any]]] = {}
        main = lowered["main"]
        for binding in bindings(main):
            self._bind(binding.var, binding.value)
        self._relate(set(relax.analysis.free_vars(main.body.body)))

    def _relate(self, outputs: set[Any]) -> None:
        self.readers: dict[Value, list[Value]] = collections.defaultdict(list)
        self._owned: dict[Any, list[Value]] = collections.defaultdict(list)
        for value in self.values:
            self._owned[value.owner].append(value)
            for source in value.sources:
                self.readers[source].append(value)
        self.read_by: dict[Any, set[Any]] = {variable: set() for variable in self.order}
        for reader, sources in self.reads.items():
            for source in sources:
                self.read_by.get(source, set()).add(reader)
        for variable in outputs & set(self.read_by):
            self.read_by[variable].add(None)

    def is_only(self, variable: Any, functions: Collection[str]) -> bool:
        """Whether a variable's program is known and nothing but these functions."""
        if variable in self._parts:
            return "narrow" in functions
        owned = self._owned.get(variable, ())
        return bool(owned) and all(value.function in functions for value in owned)

    def wholes(self, variable: Any) -> set[Any]:
        """The variables of several tensors that it is one of."""
        return {each for each in self.reads[variable] if each in self._parts}

    def _bind(self, variable: Any, value: Any) -> None:
        self.order.append(variable)
        self.reads[variable] = _read(value)
        symbol = groups.called(value)
        if symbol is not None:
            self._call(variable, value, symbol)
        elif operator_name(value) == "reshape":
            options = {"shape": [int(extent) for extent in variable.ty.shape]}
            self._add("reshape", (self._value(value.args[0]),), options, variable)
        elif isinstance(value, relax.TupleGetItem) and value.tuple_value in self._parts:
            tensor, split = self._parts[value.tuple_value]
            sizes = split["sizes"]
            options = {
                "dim": split["dim"],
                "start": sum(sizes[: value.index]),
                "length": sizes[value.index],
            }
            self._add("narrow", (tensor,), options, variable)

    def _call(self, variable: Any, value: Any, symbol: str) -> None:
        operands = [self._value(each) for each in value.args[1].fields]
        form = self._forms.get(symbol)
        if symbol in self._splits:
            self._parts[variable] = operands[0], self._splits[symbol]
        elif isinstance(form, TorchForm):
            values: list[Value] = list(operands)
            for number, call in enumerate(form.calls):
                is_last = number == len(form.calls) - 1
                made = tuple(_changed(call.operands, int, values))
                values.append(
                    self._add(call.function, made, call.options, variable, call.dtype, is_last)
                )

    def _add(
        self,
        function: str,
        operands: tuple[Any, ...],
        options: Mapping[str, Any],
        variable: Any,
        dtype: str = "",
        is_last: bool = True,
    ) -> Value:
        value = Value(
            function,
            operands,
            options,
            dtype or str(variable.ty.dtype),
            owner=variable,
            expression=variable if is_last else None,
        )
        self.values.append(value)
        if is_last:
            self._of[variable] = value
        return value

    def _value(self, expression: Any) -> Value:
        if expression not in self._of:
            kind = expression.ty
            self._of[expression] = Value(
                "", (), {}, str(kind.dtype), expression=expression, constant=_scalar(expression)
            )
        return self._of[expression]


def form_of(
    result: Value,
    is_inside: Callable[[Value], bool],
    replaced: Mapping[Value, Value] = types.MappingProxyType({}),
) -> tuple[TorchForm, list[Value]]:
    """The form that gives a value, and its inputs: the first values that are not inside.

    Args:
        replaced: what is computed in the place of values.
    """
    inputs: list[Value] = []
    ordered: list[Value] = []
    seen: set[Value] = set()

    def visit(value: Value) -> None:
        value = replaced.get(value, value)
        if value in seen:
            return
        seen.add(value)
        if not is_inside(value):
            inputs.append(value)
            return
        for source in value.sources:
            visit(source)
        ordered.append(value)

    visit(result)
    numbers = {value: number for number, value in enumerate([*inputs, *ordered])}
    numbers |= {old: numbers[new] for old, new in replaced.items() if new in numbers}

    calls = [
        TorchCall(each.function, _changed(each.operands, Value, numbers), each.options, each.dtype)
        for each in ordered
    ]
    return TorchForm(len(inputs), calls), inputs


def _changed(operands: Sequence[Any], kind: type, new: Any) -> list[Any]:
    """Operands with those of a kind replaced, in lists as well; the others are constants."""
    return [
        [new[each] for each in operand]
        if isinstance(operand, list)
        else new[operand]
        if isinstance(operand, kind)
        else operand
        for operand in operands
    ]


def _read(value: Any) -> list[Any]:
    """The tensors and tuples that a binding reads."""
    if isinstance(value, relax.TupleGetItem):
        return [value.tuple_value]
    fields: list[Any] = list(value.args) if isinstance(value, relax.Call) else [value]
    flat = [each for f in fields for each in (f.fields if isinstance(f, relax.Tuple) else [f])]
    return [each for each in flat if isinstance(each, relax.Var) or _is_constant(each)]


def _is_constant(expression: Any) -> bool:
    return isinstance(expression, tvm.ir.GenericConst)


def _scalar(expression: Any) -> float | None:
    if not _is_constant(expression) or len(expression.ty.shape):
        return None
    return float(expression.value.numpy().item())
