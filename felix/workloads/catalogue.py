"""The operators by name: JSON Schemas, building from parameters, the one-line text form.

Text form: `NAME:VALUE,VALUE,...,PARAM=VALUE,...` with positional values in the order of the
function's signature and the rest by name; nothing else needs quoting in a shell:

    gemm:512,512,512,epilogue=bias+relu
    gemm:m=512,n=512,k=512,batch=12
    conv2d:1,56,56,64,64,3,padding=1,stride=2x2,layout=NCHW
    softmax:12x128x128,axis=-1
    reduce:64x96,axes=0+1,kind=mean
    elementwise:32x64,ops=mul@1+relu

Lists of integers are joined by `x` (or `+`), lists of names by `+`; booleans are true or false;
an empty value is an empty list.
"""

from __future__ import annotations

import dataclasses
import difflib
import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from felix import errors, names, task
from felix.workloads import common, convolution, matmul, pointwise, reduction, transposed

N = TypeVar("N", int, float)


@dataclasses.dataclass(frozen=True, slots=True)
class Operator:
    """One operator of the catalogue."""

    name: str
    function: Callable[..., task.Task]
    parameters: tuple[common.Parameter, ...]
    summary: str

    @property
    def schema(self) -> dict[str, Any]:
        """JSON Schema (2020-12) of the parameters."""
        return {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "title": self.name,
            "description": self.summary,
            "type": "object",
            "properties": {p.name: _property(p) for p in self.parameters},
            "required": [p.name for p in self.parameters if p.required],
            "additionalProperties": False,
        }


def _property(parameter: common.Parameter) -> dict[str, Any]:
    bound = {} if parameter.minimum is None else {"minimum": parameter.minimum}
    integer: dict[str, Any] = {"type": "integer", **bound}
    integers: dict[str, Any] = {"type": "array", "items": integer}
    named: dict[str, Any] = {"type": "string"}
    choice = named | ({"enum": list(parameter.choices)} if parameter.choices else {})
    kinds: dict[str, dict[str, Any]] = {
        "int": integer,
        "ints": integers,
        "per_axis": {"oneOf": [integer, integers]},
        "names": {"type": "array", "items": choice},
        "words": {"type": "array", "items": named},
        "choice": choice,
        "bool": {"type": "boolean"},
        "float": {"type": "number"},
    }
    schema = kinds[parameter.kind]
    if parameter.optional:
        schema = {"oneOf": [schema, {"type": "null"}]}
    if parameter.description:
        schema = schema | {"description": parameter.description}
    if not parameter.required:
        default = parameter.default
        schema = schema | {"default": list(default) if isinstance(default, tuple) else default}
    return schema


def _operator(function: Callable[..., task.Task]) -> Operator:
    summary = (inspect.getdoc(function) or "").splitlines()[0]
    return Operator(function.__name__, function, common.parameters(function), summary)


#: name -> operator
OPERATORS: Mapping[str, Operator] = {
    function.__name__: _operator(function)
    for function in (
        matmul.gemm,
        convolution.conv1d,
        convolution.conv2d,
        convolution.conv3d,
        convolution.depthwise_conv2d,
        transposed.conv_transpose2d,
        reduction.pool2d,
        reduction.global_pool2d,
        reduction.reduce,
        reduction.softmax,
        reduction.layer_norm,
        reduction.rms_norm,
        pointwise.elementwise,
    )
}


def find(name: str) -> Operator:
    """The operator of that name; else a WorkloadError that suggests close names."""
    if isinstance(name, str) and name in OPERATORS:
        return OPERATORS[name]
    close = difflib.get_close_matches(str(name), OPERATORS, n=3)
    known = f"did you mean {' or '.join(close)}?" if close else f"known: {', '.join(OPERATORS)}"
    raise errors.WorkloadError(f"unknown operator {names.quoted(name)}; {known}")


def build(name: str, params: Mapping[str, Any], target: common.TargetLike = "llvm") -> task.Task:
    """Build the task of a catalogue operator from its parameters by name.

    Raises:
        WorkloadError: unknown operator, unknown or missing parameter, or a bad value.
        TargetError: unknown target.
    """
    operator = _with_known_names(name, params)
    return operator.function(**params, target=target)


def complete(name: str, params: Mapping[str, Any]) -> dict[str, Any]:
    """All parameters of an operator by name: those of `params`, checked, and the defaults.

    Raises:
        WorkloadError: unknown operator, unknown or missing parameter, or a bad value.
    """
    return {
        parameter.name: common.normalise(name, parameter, params[parameter.name])
        if parameter.name in params
        else parameter.default
        for parameter in _with_known_names(name, params).parameters
    }


def _with_known_names(name: str, params: Mapping[str, Any]) -> Operator:
    """The operator, if `params` has all its required parameters and only names that it knows."""
    operator = find(name)
    known = [parameter.name for parameter in operator.parameters]
    if not isinstance(params, Mapping):
        raise errors.WorkloadError(f"{name}: the parameters must be an object of names and values")
    for key in params:
        if key not in known:
            close = difflib.get_close_matches(str(key), known, n=1)
            hint = f"did you mean {close[0]}?" if close else f"known: {', '.join(known)}"
            raise errors.WorkloadError(f"{name}: unknown parameter {names.quoted(key)}; {hint}")
    missing = [p.name for p in operator.parameters if p.required and p.name not in params]
    if missing:
        raise errors.WorkloadError(f"{name}: missing parameter {', '.join(missing)}")
    return operator


def parse(text: str, target: common.TargetLike = "llvm") -> task.Task:
    """Build a task from its one-line form (see the module docstring)."""
    return build(*parse_params(text), target)


def parse_params(text: str) -> tuple[str, dict[str, Any]]:
    """Split the one-line form into the operator's name and its parameters."""
    name, _, rest = text.strip().partition(":")
    operator = find(name.strip())
    by_name = {parameter.name: parameter for parameter in operator.parameters}
    positional = [parameter.name for parameter in operator.parameters if parameter.positional]
    params: dict[str, Any] = {}
    for position, item in enumerate(rest.split(",") if rest.strip() else []):
        key, named, value = (part.strip() for part in item.partition("="))
        if not named:
            if list(params) != positional[:position] or position >= len(positional):
                raise errors.WorkloadError(
                    f"{name}: unexpected positional value {names.quoted(key)}"
                )
            key, value = positional[position], key
        if key in params:
            raise errors.WorkloadError(f"{name}: {key} is given twice")
        params[key] = _value(name, by_name[key], value) if key in by_name else value
    return name.strip(), params


def _value(owner: str, parameter: common.Parameter, text: str) -> Any:
    match parameter.kind:
        case "int":
            is_none = parameter.optional and text == "none"
            return None if is_none else _number(int, owner, parameter, text)
        case "ints":
            words = text.replace("+", "x").split("x") if text else []
            return tuple(_number(int, owner, parameter, word) for word in words)
        case "per_axis":
            values = [_number(int, owner, parameter, word) for word in text.split("x")]
            return values[0] if len(values) == 1 else tuple(values)
        case "names" | "words":
            return tuple(item for item in text.split("+") if item)
        case "choice":
            return None if parameter.optional and text == "none" else text
        case "bool":
            return {"true": True, "false": False}.get(text.lower(), text)
        case "float":
            return _number(float, owner, parameter, text)


def _number(kind: Callable[[str], N], owner: str, parameter: common.Parameter, text: str) -> N:
    try:
        return kind(text)
    except ValueError:
        what = "an integer" if kind is int else "a number"
        message = f"{owner}: {parameter.name} must be {what}, got {names.quoted(text)}"
        raise errors.WorkloadError(message) from None
