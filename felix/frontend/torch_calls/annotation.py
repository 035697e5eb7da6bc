"""Programs that know which functions of PyTorch they stand for.

A program has the attribute `ATTRIBUTE`: a `TorchForm` as JSON whose inputs are the tensors that
the program reads, in order.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import tvm
import tvm_ffi
from tvm import relax, tirx

from felix.frontend.rewriting import operator_name
from felix.frontend.torch_calls import conversions
from felix.frontend.torch_calls.form import Operand, TorchCall, TorchForm, form_from_json

ATTRIBUTE = "felix.torch_form"
#: A builder and a call of an operator -> a call of its program.
Lowering: TypeAlias = "Callable[[relax.BlockBuilder, Any], Any]"


def legalizations(
    own: Mapping[str, Lowering] = types.MappingProxyType({}),
) -> Mapping[str, Lowering]:
    """Ways to lower operators, with programs that are annotated, for one module.

    Args:
        own: ways to take in place of TVM's, by the operators' names.
    """
    variables: dict[tuple[str, int], Any] = {}
    known = [f"relax.{name}" for name in conversions.CONVERSIONS]
    ways = {name: own.get(name) or tvm.ir.Op.get(name).get_attr("FLegalize") for name in known}
    return {**own, **{name: _annotating(way, variables) for name, way in ways.items()}}


def attributes(function: str, n_operands: int, dtype: str) -> dict[str, str]:
    """Attributes of a program that a function of PyTorch computes from its operands in order."""
    call = TorchCall(function, list(range(n_operands)), {}, dtype)
    return {ATTRIBUTE: TorchForm(n_operands, [call]).to_json()}


def annotated(func: tirx.PrimFunc, form: TorchForm) -> tirx.PrimFunc:
    """The program, which a form computes from the tensors that it reads."""
    return func.with_attr(ATTRIBUTE, form.to_json())


def form_of(func: tirx.PrimFunc) -> TorchForm | None:
    """What a program stands for; None if that is not known."""
    text = (func.attrs or {}).get(ATTRIBUTE)
    return None if text is None else form_from_json(str(text))


def _annotating(lower: Lowering, variables: dict[tuple[str, int], Any]) -> Lowering:
    """A way to lower an operator, annotated; `variables` has those of equal programs."""

    def legalize(builder: relax.BlockBuilder, call: Any) -> Any:
        result = lower(builder, call)
        torch_call = _torch_call(call, result)
        if torch_call is None:
            return result
        variable = result.args[0]
        text = TorchForm(len(result.args[1].fields), [torch_call]).to_json()
        plain = builder.get()[variable].without_attr(ATTRIBUTE)
        key = text, tvm_ffi.structural_hash(plain)
        if key not in variables:
            is_free = variable not in variables.values()
            func = plain.with_attr(ATTRIBUTE, text)
            if is_free:
                builder.update_func(variable, func)
            variables[key] = variable if is_free else builder.add_func(func, variable.name_hint)
        operands = [variables[key], *result.args[1:]]
        return relax.Call(result.op, operands, result.attrs, result.ty_args)

    return legalize


def _torch_call(call: Any, lowered: Any) -> TorchCall | None:
    """What an operator's program stands for; None if that is not known."""
    if operator_name(lowered) != "call_tir" or len(lowered.args) != 2:
        return None
    draft = conversions.draft(call)
    (result,) = lowered.ty_args
    if draft is None:
        return None
    if draft[0] == "split":
        result = result.fields[0]
    if not isinstance(result, relax.TensorType):
        return None
    function, operands, options = draft
    tensors = list(lowered.args[1].fields)
    numbered = [_operand(each, tensors) for each in operands]
    if any(each is None for each in numbered):
        return None
    return TorchCall(
        function, [each for each in numbered if each is not None], options, str(result.dtype)
    )


def _operand(value: Any, tensors: Sequence[Any]) -> Operand | None:
    """An operand as the number of a tensor, or a constant that is in the program itself."""
    if isinstance(value, list):
        numbers = [_number(each, tensors) for each in value]
        return None if None in numbers else [each for each in numbers if each is not None]
    number = _number(value, tensors)
    if number is None and isinstance(value, tvm.ir.GenericConst) and not value.value.shape:
        return {"constant": value.value.numpy().item()}
    return number


def _number(value: Any, tensors: Sequence[Any]) -> int | None:
    return next((i for i, each in enumerate(tensors) if each.same_as(value)), None)
