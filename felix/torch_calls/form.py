"""A group of calls as PyTorch computes it: a list of function calls, as JSON.

Values are numbered: a form's inputs first, then the result of each call. The last call gives the
form's result. `felix.torch_calls.functions` has the functions by their names, and runs forms
without Felix.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

#: The number of a value, {"constant": x}, or a list of numbers of values (concatenation).
Operand: TypeAlias = "int | dict[str, Any] | list[int]"


@dataclasses.dataclass(frozen=True, slots=True)
class TorchCall:
    """One call of a function of PyTorch.

    Attributes:
        function: its name in `felix.torch_calls.functions`.
        operands: see `Operand`.
        options: further arguments by name, as JSON has them.
        dtype: element type of the result.
    """

    function: str
    operands: Sequence[Operand]
    options: Mapping[str, Any]
    dtype: str

    def renumbered(self, number_of: Callable[[int], int]) -> TorchCall:
        """The call with other numbers of values."""

        def moved(operand: Operand) -> Operand:
            if isinstance(operand, int):
                return number_of(operand)
            return list(map(number_of, operand)) if isinstance(operand, list) else operand

        return dataclasses.replace(self, operands=[moved(each) for each in self.operands])


@dataclasses.dataclass(frozen=True, slots=True)
class TorchForm:
    """Calls in the order of execution.

    Attributes:
        n_inputs: values that it takes.
        calls: the calls.
        allow_tf32: whether products of float32 may be computed in TF32.
    """

    n_inputs: int
    calls: Sequence[TorchCall]
    allow_tf32: bool = False

    def to_json(self) -> str:
        """The form as text; equal forms have equal texts."""
        fields = dataclasses.asdict(self)
        if not self.allow_tf32:
            del fields["allow_tf32"]
        return json.dumps(fields, sort_keys=True)

    @property
    def key(self) -> str:
        """Hash of the text."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()[:16]

    @property
    def function_name(self) -> str:
        """By which TVM calls what runs the form: equal forms have equal names."""
        return f"felix.pytorch.{self.key}"

    @property
    def functions(self) -> str:
        """Names of what is called, for people."""
        return ", ".join(call.function for call in self.calls)


def register(form: TorchForm) -> str:
    """Make a form a function that TVM's virtual machine calls by its name; returns the name."""
    import tvm

    from felix.torch_calls import functions

    name = form.function_name
    if tvm.get_global_func(name, allow_missing=True) is None:
        tvm.register_global_func(name, functions.packed(form.to_json()))
    return name


def form_from_json(text: str) -> TorchForm:
    """What `to_json` wrote."""
    fields = json.loads(text)
    calls = [TorchCall(**call) for call in fields["calls"]]
    return TorchForm(fields["n_inputs"], calls, fields.get("allow_tf32", False))


# Fewer calls for the same: a bias inside the product or convolution that it is added to.

_Shape = tuple[int, ...] | None


def simplified(form: TorchForm, shapes: Sequence[_Shape]) -> TorchForm:
    """The form with calls and those behind them as one, where they can be.

    Args:
        form: what to simplify.
        shapes: of the form's inputs.
    """
    calls = list(form.calls)
    number = 0
    while number + 1 < len(calls):
        joined = _joined(form.n_inputs, calls, number, shapes)
        if joined is not None:
            calls[number : number + 2] = [joined]
            after = functools.partial(_after, form.n_inputs + number)
            calls[number + 1 :] = [call.renumbered(after) for call in calls[number + 1 :]]
        number += 1
    return dataclasses.replace(form, calls=calls)


def _after(removed: int, number: int) -> int:
    """The number of a value once the one behind `removed` is one with it."""
    return number - (number > removed)


def _joined(
    n_inputs: int, calls: Sequence[TorchCall], number: int, shapes: Sequence[_Shape]
) -> TorchCall | None:
    """A call and the one behind it as one call."""
    call, following = calls[number], calls[number + 1]
    result = n_inputs + number
    if following.function != "add" or result not in following.operands:
        return None
    if any(_reads(later, result) for later in calls[number + 2 :]) or len(call.operands) != 2:
        return None
    bias = next((each for each in following.operands if each != result), None)
    weight = call.operands[1]
    if not isinstance(bias, int) or not isinstance(weight, int):
        return None
    if max(bias, weight) >= n_inputs or not _is_bias(call, shapes[weight], shapes[bias]):
        return None
    function = "linear" if call.function == "matmul_transposed" else call.function
    return dataclasses.replace(
        call, function=function, operands=[*call.operands, bias], dtype=following.dtype
    )


def _reads(call: TorchCall, value: int) -> bool:
    return any(
        value in operand if isinstance(operand, list) else operand == value
        for operand in call.operands
    )


def _is_bias(call: TorchCall, weight: _Shape, bias: _Shape) -> bool:
    """Whether a tensor has one value for each channel of the result, in the right place."""
    if weight is None or bias is None:
        return False
    if call.function == "matmul_transposed":
        ones = (1,) * (len(bias) - 1)
        return len(weight) == 2 and len(bias) > 0 and bias == (*ones, weight[0])
    if not call.function.startswith("conv"):
        return False
    channels = weight[0]
    if "transpose" in call.function:
        channels = weight[1] * int(call.options["groups"])
    return bias == (1, channels, *[1] * (len(weight) - 2))
