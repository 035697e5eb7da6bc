"""The forms of a module's groups, put together from what its programs stand for.

The lowered module has them as the attribute `FORMS`: by the name of a group's PrimFunc its form
as JSON, or why there is none.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import tvm
from tvm import relax, tirx

from felix.frontend import imported
from felix.frontend.rewriting import operator_name
from felix.frontend.torch_calls import annotation, simplification
from felix.frontend.torch_calls.form import TorchCall, TorchForm, form_from_json

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
        variable: func.without_attr(annotation.ATTRIBUTE)
        if isinstance(func, tirx.PrimFunc) and annotation.ATTRIBUTE in (func.attrs or {})
        else func
        for variable, func in lowered.functions_items()
    }
    plain = tvm.IRModule(functions, attrs=lowered.attrs)
    return plain.with_attr(FORMS, json.dumps(texts))


def read(lowered: tvm.IRModule) -> dict[str, TorchForm | str]:
    """By the name of each PrimFunc the form of its group, or why there is none."""
    text = (lowered.attrs or {}).get(FORMS)
    fields = json.loads(str(text)) if text is not None else {}
    return {
        symbol: form_from_json(known["form"]) if "form" in known else str(known["missing"])
        for symbol, known in fields.items()
    }


def splits(lowered: tvm.IRModule) -> dict[str, Mapping[str, Any]]:
    """By the name of each PrimFunc that splits a tensor: `dim`, and the `sizes` of the parts."""
    text = (lowered.attrs or {}).get(FORMS)
    fields = json.loads(str(text)) if text is not None else {}
    return {symbol: known[_SPLIT] for symbol, known in fields.items() if _SPLIT in known}


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
    for block in mod["main"].body.blocks:
        for binding in block.bindings:
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
        bindings = [each for block in function.body.blocks for each in block.bindings]
        steps = [(each.var, each.value) for each in bindings]
        inputs = list(function.params)
    else:
        return "it is no call of a program"
    form = of_calls(mod, steps, inputs)
    if isinstance(form, str):
        return form
    shapes = [imported.spec_of_type(each.ty, "").shape for each in inputs]
    return _in_eager_types(simplification.simplified(form, shapes))


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
    known = annotation.form_of(mod[step.args[0]])
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
    if narrow not in ("float16", "bfloat16"):
        return form
    calls = [
        TorchCall(
            call.function,
            call.operands,
            call.options,
            narrow if call.dtype == "float32" else call.dtype,
        )
        for call in form.calls
    ]
    return TorchForm(form.n_inputs, calls)
