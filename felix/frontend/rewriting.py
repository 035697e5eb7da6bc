"""Rewriting the function `main` of an imported model, binding by binding.

The new `main` has one dataflow block and returns a tuple. A rule sees each binding with its
operands already rewritten, and returns what stands for it, emitting what that needs, or None to
keep it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tvm
from tvm import relax

_NAME = "felix_rewritten"
#: A rewriter and a binding's value with new operands -> what stands for it, or None.
Rule = Callable[["Rewriter", Any], Any]


class Rewriter:
    """One pass over `main`: which new expression stands for each old variable."""

    def __init__(self, mod: tvm.IRModule) -> None:
        """Prepare a pass over a module, which stays as it is."""
        self._main = mod["main"]
        self.builder = relax.BlockBuilder(mod)
        self._reads = Counter(_read_by(self._main))
        self._new: dict[Any, Any] = {}
        self._old: dict[Any, Any] = {}
        self._values: dict[Any, Any] = {}

    def emit(self, value: Any) -> Any:
        """Bind a value in the new function."""
        var = self.builder.emit(value)
        self._values[var] = value
        return var

    def value(self, var: Any, operator: str | None = None) -> Any:
        """What computes a variable of the new function, if it is a call (of this operator)."""
        value = self._values.get(var)
        if not isinstance(value, relax.Call):
            return None
        return value if operator in (None, operator_name(value)) else None

    def is_read_once(self, var: Any) -> bool:
        """Whether a variable of the new function stands for one that is read once."""
        return self._reads[self._old.get(var)] == 1

    def run(self, rule: Rule, params: Callable[[], Sequence[Any]] | None = None) -> tvm.IRModule:
        """The module with `main` rewritten.

        Args:
            rule: see the module's text.
            params: gives the parameters of the new function, once all bindings are rewritten;
                those of the old one when left out.
        """
        main = self._main
        with self.builder.function(_NAME):
            with self.builder.dataflow():
                for binding in bindings(main):
                    value = self._substitute(binding.value)
                    if isinstance(binding, relax.MatchCast):
                        self._new[binding.var] = self.builder.match_cast(value, binding.ty)
                    else:
                        self._rewrite(rule, binding.var, value)
                result = self._substitute(main.body.body)
                if isinstance(result.ty, relax.TensorType):
                    result = relax.Tuple([result])
                output = self.builder.emit_output(result)
            chosen = list(params() if params is not None else main.params)
            self.builder.emit_func_output(output, params=chosen)
        return _as_main(self.builder.get(), main)

    def _rewrite(self, rule: Rule, var: Any, value: Any) -> None:
        chosen = rule(self, value)
        if isinstance(chosen, relax.Call):  # readers get a variable, whose type is known
            chosen = self.emit(chosen)
        if chosen is None:
            is_emitted = not isinstance(value, relax.Tuple | relax.Var)
            chosen = self.emit(value) if is_emitted else value
        self._new[var] = chosen
        self._old.setdefault(chosen, var)

    def _substitute(self, value: Any) -> Any:
        """An expression of the old function with the new operands."""
        if isinstance(value, relax.Var):
            return self._new.get(value, value)
        if isinstance(value, relax.Call):
            operands = [self._substitute(operand) for operand in value.args]
            return relax.Call(value.op, operands, value.attrs, value.ty_args)
        if isinstance(value, relax.Tuple):
            return relax.Tuple([self._substitute(field) for field in value.fields])
        if isinstance(value, relax.TupleGetItem):
            whole = self._substitute(value.tuple_value)
            if isinstance(whole, relax.Tuple):
                return whole.fields[value.index]
            return relax.TupleGetItem(whole, value.index)
        return value


def operator_name(value: Any) -> str:
    """The name of the operator of a call without "relax.", or "" for anything else."""
    if not isinstance(value, relax.Call):
        return ""
    return str(getattr(value.op, "name", "")).removeprefix("relax.")


def bindings(function: Any) -> Iterator[Any]:
    """The bindings of a Relax function, in the order of execution."""
    return (binding for block in function.body.blocks for binding in block.bindings)


def constants(mod: tvm.IRModule) -> frozenset[Any]:
    """The variables of a model's parameters, and of what depends on them alone."""
    main = mod["main"]
    n_inputs = int((main.attrs or {}).get("num_input", len(main.params)))
    found = set(list(main.params)[n_inputs:])
    for binding in bindings(main):
        read = set(relax.analysis.free_vars(binding.value))
        if read and read <= found:
            found.add(binding.var)
    return frozenset(found)


def rebuilt(mod: tvm.IRModule, emit: Callable[[relax.BlockBuilder, Any], None]) -> tvm.IRModule:
    """The module with `main` made anew: `emit` says what becomes of each binding."""
    main = mod["main"]

    def result(builder: relax.BlockBuilder) -> Any:
        for binding in bindings(main):
            emit(builder, binding)
        return main.body.body

    return _as_main(with_function(mod, list(main.params), result, _NAME), main)


def with_function(
    mod: tvm.IRModule,
    parameters: Sequence[relax.Var],
    result: Callable[[relax.BlockBuilder], Any],
    name: str = "main",
) -> tvm.IRModule:
    """A module and a function of one dataflow block: its parameters, and what `result` emits."""
    builder = relax.BlockBuilder(mod)
    with builder.function(name, list(parameters)):
        with builder.dataflow():
            output = builder.emit_output(result(builder))
        builder.emit_func_output(output)
    return builder.get()


def tensor_type(buffer: Any) -> relax.TensorType:
    """The type of a Relax tensor that a buffer of a program is."""
    return relax.TensorType([int(extent) for extent in buffer.shape], str(buffer.dtype))


def results_of_call(
    builder: relax.BlockBuilder, call: Any, n_results: int, name: str = ""
) -> list[Any]:
    """The variables of the results of a call, which is emitted."""
    whole = builder.emit(call, name)
    if n_results == 1:
        return [whole]
    return [builder.emit(relax.TupleGetItem(whole, n), name) for n in range(n_results)]


def _as_main(mod: tvm.IRModule, main: Any) -> tvm.IRModule:
    """The module whose new function takes the place of `main`, with the attributes of that."""
    made = mod[_NAME].without_attr("global_symbol")
    for name, value in (main.attrs or {}).items():
        made = made.with_attr(name, value)
    del mod[_NAME]
    mod["main"] = made
    return mod


def _read_by(main: Any) -> Iterator[Any]:
    """Every variable that a function reads, as often as it is read."""
    stack = [main.body.body, *(binding.value for binding in bindings(main))]
    while stack:
        value = stack.pop()
        if isinstance(value, relax.Var):
            yield value
        elif isinstance(value, relax.Call):
            stack.extend(value.args)
        elif isinstance(value, relax.Tuple):
            stack.extend(value.fields)
        elif isinstance(value, relax.TupleGetItem):
            stack.append(value.tuple_value)
