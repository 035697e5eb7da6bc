"""Fewer calls for the same: a bias inside the product or convolution that it is added to, and no
bound of places below 0, which PyTorch never gives (`felix.frontend.programs.operators`)."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

from felix.frontend.torch_calls.form import TorchCall, TorchForm

_Shape = tuple[int, ...] | None
#: Functions that give places of elements.
_PLACES = frozenset({"argmax", "argmin"})


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
    if call.function in _PLACES and following.function == "maximum":
        is_bound = list(following.operands) == [result, {"constant": 0}]
        return dataclasses.replace(call, dtype=following.dtype) if is_bound else None
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
