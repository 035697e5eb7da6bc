"""Programs that know which functions of PyTorch they stand for, and the forms of a module's
groups.

A program has the attribute `ATTRIBUTE`: a `TorchForm` as JSON whose inputs are the tensors that
the program reads, in order. The forms of a module's groups are put together from what its programs
stand for. The lowered module has them as the attribute `FORMS`: by the name of a group's PrimFunc
its form as JSON, or why there is none.
"""

from __future__ import annotations

import dataclasses
import json
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import tvm
import tvm_ffi
from tvm import relax, tirx

from felix.frontend import imported
from felix.frontend.rewriting import bindings, operator_name
from felix.tir import rounding
from felix.torch_calls import relax_calls
from felix.torch_calls.form import Operand, TorchCall, TorchForm, form_from_json, simplified

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
    known = [f"relax.{name}" for name in relax_calls.CONVERSIONS]
    ways = {name: own.get(name) or tvm.ir.Op.get(name).get_attr("FLegalize") for name in known}
    return {**own, **{name: _annotating(way, variables) for name, way in ways.items()}}


def attributes(function: str, n_operands: int, dtype: str, **options: Any) -> dict[str, str]:
    """Attributes of a program that a function of PyTorch computes from its operands in order."""
    call = TorchCall(function, list(range(n_operands)), options, dtype)
    return {ATTRIBUTE: TorchForm(n_operands, [call]).to_json()}


def annotated(func: tirx.PrimFunc, form: TorchForm | None) -> tirx.PrimFunc:
    """The program, which a form, if one is known, computes from the tensors that it reads."""
    return func if form is None else func.with_attr(ATTRIBUTE, form.to_json())


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
    draft = relax_calls.draft(call)
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


FORMS = "felix.torch_forms"
#: The function that gives several tensors; no other does.
_SPLIT = "split"


def attach(grouped: tvm.IRModule, lowered: tvm.IRModule) -> tvm.IRModule:
    """The lowered module with the forms of its groups, and programs without annotations.

    Args:
        grouped: with groups of several calls as primitive functions.
        lowered: the same with one PrimFunc for each group.
    """
    texts: dict[str, Mapping[str, Any]] = {}
    before, after = _bindings(grouped), _bindings(lowered)
    for var, value in after.items():
        if operator_name(value) == "call_tir" and var in before:
            symbol = str(value.args[0].name_hint)
            form = _form(grouped, before[var])
            known = {"missing": form} if isinstance(form, str) else {"form": form.to_json()}
            texts.setdefault(symbol, known | _split(grouped, before[var]))
    functions = {
        variable: func.without_attr(ATTRIBUTE)
        if isinstance(func, tirx.PrimFunc) and ATTRIBUTE in (func.attrs or {})
        else func
        for variable, func in lowered.functions_items()
    }
    plain = tvm.IRModule(functions, attrs=lowered.attrs)
    return plain.with_attr(FORMS, json.dumps(texts))


def read(lowered: tvm.IRModule) -> dict[str, TorchForm | str]:
    """By the name of each PrimFunc the form of its group, or why there is none."""
    return {
        symbol: form_from_json(known["form"]) if "form" in known else str(known["missing"])
        for symbol, known in _attached(lowered).items()
    }


def splits(lowered: tvm.IRModule) -> dict[str, Mapping[str, Any]]:
    """By the name of each PrimFunc that splits a tensor: `dim`, and the `sizes` of the parts."""
    texts = _attached(lowered)
    return {symbol: known[_SPLIT] for symbol, known in texts.items() if _SPLIT in known}


def _attached(lowered: tvm.IRModule) -> dict[str, Any]:
    """What `attach` wrote."""
    fields: dict[str, Any] = json.loads(str((lowered.attrs or {}).get(FORMS, "{}")))
    return fields


def _split(mod: tvm.IRModule, value: Any) -> dict[str, Any]:
    """What is kept of a split; nothing of other calls."""
    form = _known(mod, value)
    if isinstance(form, str) or form.calls[0].function != _SPLIT:
        return {}
    return {_SPLIT: form.calls[0].options}


def _bindings(mod: tvm.IRModule) -> dict[str, Any]:
    """The values of `main` by the names of their variables, as far as these are distinct."""
    values: dict[str, Any] = {}
    repeated = set()
    for binding in bindings(mod["main"]):
        name = str(binding.var.name)
        if name in values:
            repeated.add(name)
        values[name] = binding.value
    return {name: value for name, value in values.items() if name not in repeated}


def _form(mod: tvm.IRModule, value: Any) -> TorchForm | str:
    """The form of a group, or which of its programs no function of PyTorch stands for."""
    if operator_name(value) == "call_tir":
        steps, inputs = [(None, value)], list(value.args[1].fields)
    elif isinstance(value, relax.Call) and isinstance(value.op, tvm.ir.GlobalVar):
        function = mod[value.op]
        steps = [(each.var, each.value) for each in bindings(function)]
        inputs = list(function.params)
    else:
        return "it is no call of a program"
    form = of_calls(mod, steps, inputs)
    if isinstance(form, str):
        return form
    shapes = [imported.spec_of_type(each.ty, "").shape for each in inputs]
    return _in_eager_types(simplified(form, shapes))


def of_calls(
    mod: tvm.IRModule, steps: Sequence[tuple[Any, Any]], inputs: Sequence[Any]
) -> TorchForm | str:
    """The form of calls one behind the other, or why there is none.

    Args:
        mod: with their programs, annotated.
        steps: of each call its variable, which None needs not have that nothing reads, and itself.
        inputs: what they read from outside, numbered so.
    """
    if len(steps) == 1:  # what it reads may be no variables, or one twice
        numbers: dict[Any, int] = {}
    else:
        numbers = {each: number for number, each in enumerate(inputs)}
    calls: list[TorchCall] = []
    for var, step in steps:
        form = _known(mod, step)
        if isinstance(form, str):
            return form
        if form.calls[0].function == _SPLIT:
            return "it gives several tensors"
        operands = _operands(step, numbers)
        if operands is None:
            return "one of its calls reads something else than tensors"
        first = len(inputs) + len(calls)
        of_values = [*operands, *range(first, first + len(form.calls))]
        calls.extend(call.renumbered(of_values.__getitem__) for call in form.calls)
        if var is not None:
            numbers[var] = len(inputs) + len(calls) - 1
    return TorchForm(len(inputs), calls)


def _known(mod: tvm.IRModule, step: Any) -> TorchForm | str:
    """The form of a call's program, or why there is none."""
    if operator_name(step) != "call_tir":
        return "one of its calls is no program"
    known = form_of(mod[step.args[0]])
    return known or f"no function of PyTorch is known for {step.args[0].name_hint}"


def _operands(step: Any, numbers: Mapping[Any, int]) -> Sequence[int] | None:
    """The numbers of what a call reads."""
    fields = list(step.args[1].fields)
    if not numbers:
        return list(range(len(fields)))
    if not all(field in numbers for field in fields):
        return None
    return [numbers[field] for field in fields]


def _in_eager_types(form: TorchForm) -> TorchForm:
    """A form whose result has 16 bits, with 16 bits in between, as PyTorch in eager mode has.

    Programs sum in float32 and round once; PyTorch's functions do so inside each.
    """
    narrow = form.calls[-1].dtype
    if narrow not in rounding.HALF:
        return form
    calls = [
        dataclasses.replace(call, dtype=narrow) if call.dtype == "float32" else call
        for call in form.calls
    ]
    return dataclasses.replace(form, calls=calls)
