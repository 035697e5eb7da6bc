"""What every operator shares: parameter types, validation, tensor helpers.

Notation: an *extent* is a positive integer; te tensors are built with int64 dimensions, so an
index never overflows (`felix.task` narrows them to int32 where that is safe).
Element types are those of `dtypes`: narrow ones are summed in a wider one (`wide`).
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import inspect
import operator as operators
import typing
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Any, Literal, TypeAlias

from tvm import te, tirx

from felix import errors, names, target, task
from felix.workloads import dtypes

Tensor: TypeAlias = Any


@dataclasses.dataclass(frozen=True, slots=True)
class AtLeast:
    """Smallest legal value of an integer parameter, or of every item of a tuple of them."""

    minimum: int


@dataclasses.dataclass(frozen=True, slots=True)
class OneOf:
    """Legal items of a tuple of names."""

    names: tuple[str, ...]


#: Items of a list: axes, extents, stages. Programs of more stages take minutes to analyse.
MAX_ITEMS = 64
EPILOGUES = ("bias", "relu", "gelu", "residual", *dtypes.SCALES)

Extent: TypeAlias = Annotated[int, AtLeast(1)]
Shape: TypeAlias = Annotated[tuple[int, ...], AtLeast(1)]
Axes: TypeAlias = tuple[int, ...]
PerAxis: TypeAlias = Annotated[int | Sequence[int], AtLeast(1)]
Padding: TypeAlias = Annotated[int | Sequence[int], AtLeast(0)]
Epilogue: TypeAlias = Annotated[Sequence[str], OneOf(EPILOGUES)]
TargetLike: TypeAlias = target.TargetLike

#: What parameters are that many operators have, where an operator's own `Args:` do not say it.
SHARED = {
    "n": "batch.",
    "h": "input height and width.",
    "w": "input height and width.",
    "ci": "input and output channels.",
    "co": "input and output channels.",
    "shape": "input shape.",
    "kernel": "kernel extents.",
    "stride": "step of the window.",
    "dilation": "distance between kernel taps.",
    "groups": "channel groups; groups = ci makes it depthwise (co must be a multiple of ci).",
    "layout": "order of the data axes.",
    "epilogue": "stages of bias ([co]), relu, gelu (erf), residual (tensor of the result's shape),"
    " scale ([co]) and scalar_scale ([1]), as for gemm.",
    "dtype": "type of data and kernel.",
    "out_dtype": "type of the result, bias and residual; as for gemm when left out.",
    "target": "what to tune for.",
}

P = typing.ParamSpec("P")
Build = Callable[P, task.Task]


@dataclasses.dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of an operator: its kind decides parsing, checking and the JSON Schema."""

    name: str
    kind: Literal["int", "ints", "per_axis", "names", "choice", "bool", "float", "words"]
    required: bool
    default: Any
    positional: bool = False
    optional: bool = False
    minimum: int | None = None
    choices: tuple[str, ...] = ()
    description: str = ""


def parameters(function: Callable[..., Any]) -> tuple[Parameter, ...]:
    """The parameters of an operator function, `target` left out, in the order of its signature."""
    hints = typing.get_type_hints(inspect.unwrap(function), include_extras=True)
    texts = _descriptions(inspect.getdoc(function) or "")
    return tuple(
        _parameter(parameter, hints[name], texts.get(name, ""))
        for name, parameter in inspect.signature(function).parameters.items()
        if name != "target"
    )


def _parameter(parameter: inspect.Parameter, hint: Any, description: str) -> Parameter:
    required = parameter.default is inspect.Parameter.empty
    optional = type(None) in typing.get_args(hint)
    if optional:
        hint = next(arg for arg in typing.get_args(hint) if arg is not type(None))
    minimum = next((m.minimum for m in _metadata(hint) if isinstance(m, AtLeast)), None)
    choices = next((m.names for m in _metadata(hint) if isinstance(m, OneOf)), ())
    if typing.get_origin(hint) is Annotated:
        hint = typing.get_args(hint)[0]
    if typing.get_origin(hint) is Literal:
        choices = typing.get_args(hint)
    return Parameter(
        name=parameter.name,
        kind=_kind(hint, choices),
        required=required,
        default=None if required else parameter.default,
        positional=parameter.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD,
        optional=optional,
        minimum=minimum,
        choices=choices,
        description=description,
    )


def _metadata(hint: Any) -> tuple[Any, ...]:
    return typing.get_args(hint)[1:] if typing.get_origin(hint) is Annotated else ()


def _kind(hint: Any, choices: tuple[str, ...]) -> Any:
    if typing.get_origin(hint) is Literal:
        return "choice"
    if hint == Sequence[str]:
        return "names" if choices else "words"
    table: dict[Any, str] = {int: "int", bool: "bool", float: "float"}
    table |= {tuple[int, ...]: "ints", int | Sequence[int]: "per_axis"}
    return table[hint]


def _descriptions(doc: str) -> dict[str, str]:
    """Texts of the `Args:` section, by parameter name (names may share a line: `m, n: ...`)."""
    texts: dict[str, str] = {}
    current: list[str] = []
    for line in doc.partition("Args:")[2].splitlines():
        body = line.strip()
        indent = len(line) - len(line.lstrip())
        if body and indent <= 4 and ":" in body:
            names, _, text = body.partition(":")
            current = [name.strip() for name in names.split(",")]
            texts |= dict.fromkeys(current, text.strip())
        elif body and indent > 4:
            texts |= {name: f"{texts[name]} {body}" for name in current}
    return texts


def _completed(function: Callable[..., Any]) -> str:
    """The docstring of an operator, with what `SHARED` says of parameters that it leaves out."""
    doc = inspect.getdoc(function) or ""
    own = _descriptions(doc)
    left = [name for name in inspect.signature(function).parameters if name not in own]
    head = doc if own else f"{doc}\n\nArgs:"
    return "\n".join([head, *(f"    {name}: {SHARED[name]}" for name in left)])


def operator(function: Callable[P, task.Task]) -> Callable[P, task.Task]:
    """Decorate an operator: check and normalise every argument before the body runs.

    Its docstring gets a line for each parameter that only `SHARED` describes.
    """
    function.__doc__ = _completed(function)
    known = {parameter.name: parameter for parameter in parameters(function)}
    signature = inspect.signature(function)

    @functools.wraps(function)
    def checked(*args: P.args, **kwargs: P.kwargs) -> task.Task:
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError as error:
            raise errors.WorkloadError(f"{function.__name__}: {error}") from error
        for name, value in bound.arguments.items():
            if name in known:
                bound.arguments[name] = normalise(function.__name__, known[name], value)
        return function(*bound.args, **bound.kwargs)

    return checked


def normalise(owner: str, parameter: Parameter, value: Any) -> Any:
    """Check one argument and bring it to its canonical Python type.

    Raises:
        WorkloadError: the value has a wrong type or is out of range; the message names it.
    """
    where = f"{owner}: {parameter.name}"
    if value is None and parameter.optional:
        return None
    match parameter.kind:
        case "int":
            return _integer(where, value, parameter.minimum)
        case "ints":
            values = _integers(where, value, parameter.minimum)
            if parameter.minimum is not None and not values:
                raise errors.WorkloadError(f"{where} must have at least one extent")
            return values
        case "per_axis":
            if isinstance(value, Iterable):
                return _integers(where, value, parameter.minimum)
            return _integer(where, value, parameter.minimum)
        case "names" | "words":
            return _names(where, value, parameter.choices)
        case "choice":
            return one_of(where, value, parameter.choices)
        case "bool":
            if isinstance(value, bool):
                return value
            raise _must_be(where, "true or false", value)
        case "float":
            if isinstance(value, int | float) and not isinstance(value, bool):
                return float(value)
            raise _must_be(where, "a number", value)


def _must_be(where: str, what: str, value: Any) -> errors.WorkloadError:
    return errors.WorkloadError(f"{where} must be {what}, got {names.quoted(value)}")


def _integer(where: str, value: Any, minimum: int | None) -> int:
    try:
        number = operators.index(value)
    except TypeError:
        raise _must_be(where, "an integer", value) from None
    if isinstance(value, bool):
        raise _must_be(where, "an integer", value)
    if minimum is not None and number < minimum:
        raise _must_be(where, f"at least {minimum}", number)
    if abs(number) >= 2**40:
        raise _must_be(where, "less than 2^40", number)
    return number


def _integers(where: str, value: Any, minimum: int | None) -> tuple[int, ...]:
    if isinstance(value, str | bytes) or not isinstance(value, Iterable):
        raise _must_be(where, "a list of integers", value)
    return tuple(_integer(where, item, minimum) for item in _bounded(where, value))


def _names(where: str, value: Any, choices: tuple[str, ...]) -> tuple[str, ...]:
    if isinstance(value, str):
        value = [item for item in value.split("+") if item]
    if not isinstance(value, Iterable):
        raise _must_be(where, "a list of names", value)
    items = _bounded(where, value)
    if choices:
        return tuple(one_of(where, item, choices) for item in items)
    return tuple(names.check(where, str(item)) for item in items)


def _bounded(where: str, value: Iterable[Any]) -> list[Any]:
    items = list(value)
    if len(items) > MAX_ITEMS:
        raise errors.WorkloadError(f"{where} has {len(items)} items; {MAX_ITEMS} are allowed")
    return items


def one_of(where: str, value: Any, choices: Sequence[str]) -> str:
    """`value` if it is one of `choices`; else a WorkloadError that names the choices."""
    if isinstance(value, str) and value in choices:
        return value
    close = difflib.get_close_matches(str(value)[: names.MAX_CHARACTERS], choices, n=1)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    raise errors.WorkloadError(
        f"{where} must be one of {', '.join(choices)}, got {names.quoted(value)}{hint}"
    )


def per_axis(where: str, value: int | Sequence[int], rank: int) -> tuple[int, ...]:
    """One value per spatial axis: an integer is repeated, a tuple must have `rank` items."""
    values = (value,) * rank if isinstance(value, int) else tuple(value)
    if len(values) != rank:
        raise errors.WorkloadError(f"{where} must have {rank} values, got {len(values)}")
    return values


def resolve_axes(where: str, axes: Sequence[int] | None, rank: int) -> tuple[int, ...]:
    """Sorted non-negative axes; None means every axis."""
    if axes is None:
        return tuple(range(rank))
    if bad := [axis for axis in axes if not -rank <= axis < rank]:
        raise errors.WorkloadError(f"{where} must lie in [-{rank}, {rank - 1}], got {bad[0]}")
    resolved = sorted(axis % rank for axis in axes)
    if not resolved or len(set(resolved)) != len(resolved):
        raise _must_be(where, "distinct and at least one", axes)
    return tuple(resolved)


def dims(extents: Iterable[int]) -> tuple[Any, ...]:
    """Extents as int64 constants."""
    return tuple(tirx.IntImm("int64", extent) for extent in extents)


def placeholder(name: str, shape: Iterable[int], dtype: str) -> Tensor:
    """An input tensor."""
    return te.placeholder(dims(shape), name=name, dtype=dtype)


def reduce_axis(name: str, extent: int) -> Any:
    """A reduction axis over [0, extent)."""
    zero = tirx.IntImm("int64", 0)
    return te.reduce_axis((zero, tirx.IntImm("int64", extent)), name=name)


def shape_of(tensor: Tensor) -> tuple[int, ...]:
    """The extents of a tensor as Python integers."""
    return tuple(int(extent) for extent in tensor.shape)


def compute(name: str, shape: Iterable[int], body: Callable[..., Any]) -> Tensor:
    """A computed tensor; the block it becomes has the tensor's name."""
    return te.compute(dims(shape), body, name=name)


def dtype_of(value: Any) -> str:
    """The element type of a tensor or an expression."""
    return str(value.dtype if hasattr(value, "dtype") else value.ty.dtype)


def wide(value: Any) -> Any:
    """The value in the type that its sums are kept in."""
    dtype = dtypes.wide(dtype_of(value))
    return value if dtype == dtype_of(value) else value.astype(dtype)


def const(value: float, like: Any) -> Any:
    """A constant of the type of `like`."""
    return tirx.const(value, dtype_of(like))


def gelu_of(x: Any) -> Any:
    """Exact (erf) GELU: x/2 · (1 + erf(x/√2))."""
    return x * const(0.5, x) * (const(1.0, x) + te.erf(x * const(0.5**0.5, x)))


def cast(tensor: Tensor, dtype: str) -> Tensor:
    """The tensor in type `dtype`; itself when it already is."""
    if dtype_of(tensor) == dtype:
        return tensor
    return compute("cast", shape_of(tensor), lambda *i: tensor[i].astype(dtype))


def name_of(kind: str, extents: Iterable[int], *tags: str) -> str:
    """A readable task name: kind, extents, then the tags that are not empty."""
    parts = [kind, "x".join(str(extent) for extent in extents), *tags]
    return "_".join(part for part in parts if part)


def finish(name: str, tensors: list[Tensor], target_like: TargetLike) -> task.Task:
    """The task that computes the last tensor from the others; `name` is cut if it is too long."""
    return task.Task.from_te(tensors, target_like, name=names.derived(name))
