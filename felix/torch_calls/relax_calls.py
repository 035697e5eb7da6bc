"""Which function of PyTorch an operator of Relax is, with its attributes.

A conversion gives None where PyTorch's function differs: uneven padding, another layout.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import tvm

#: Function, operands (expressions, numbers, lists of expressions), options.
Draft: TypeAlias = tuple[str, Sequence[Any], Mapping[str, Any]]
Conversion: TypeAlias = "Callable[[Any], Draft | None]"

_SAME = (
    "abs", "ceil", "cos", "cosh", "erf", "exp", "floor", "log", "logical_not", "negative",
    "round", "rsqrt", "sigmoid", "sign", "sin", "sinh", "sqrt", "square", "tan", "tanh",
    "add", "subtract", "multiply", "divide", "power", "maximum", "minimum", "equal", "not_equal",
    "greater", "greater_equal", "less", "less_equal", "logical_and", "logical_or", "logical_xor",
    "bitwise_and", "bitwise_or", "where", "floor_divide", "matmul",
)  # fmt: skip
_ACTIVATIONS = {"nn.relu": "relu", "nn.silu": "silu", "nn.gelu": "gelu", "nn.selu": "selu"}


def draft(call: Any) -> Draft | None:
    """The function of PyTorch for a call of a Relax operator; None if none is known.

    Args:
        call: with its type known.
    """
    conversion = CONVERSIONS.get(str(call.op.name).removeprefix("relax."))
    return None if conversion is None else conversion(call)


def _plain(function: str, **numbers: str) -> Conversion:
    """All operands; options that are numbers, by the names of their attributes."""

    def convert(call: Any) -> Draft:
        options = {name: float(getattr(call.attrs, each)) for name, each in numbers.items()}
        return function, list(call.args), options

    return convert


def _clip(call: Any) -> Draft:
    x, low, high = call.args
    return "clamp", [x], {"min": float(low.value), "max": float(high.value)}


def _reduction(function: str) -> Conversion:
    def convert(call: Any) -> Draft:
        axes = call.attrs.axis
        (x,) = call.args
        if axes is None:
            axes = range(len(x.ty.shape))
        options = {"dim": list(map(int, axes)), "keepdim": bool(call.attrs.keepdims)}
        return function, [x], options

    return convert


def _index_reduction(function: str) -> Conversion:
    def convert(call: Any) -> Draft:
        axis = None if call.attrs.axis is None else int(call.attrs.axis)
        return function, list(call.args), {"dim": axis, "keepdim": bool(call.attrs.keepdims)}

    return convert


def _softmax(function: str) -> Conversion:
    """Along an axis that is counted from the last one, which is -1."""

    def convert(call: Any) -> Draft:
        rank = len(call.args[0].ty.shape)
        return function, list(call.args), {"dim": int(call.attrs.axis) % rank - rank}

    return convert


def _norm(function: str) -> Conversion:
    """Over the last axes, with all factors."""

    def convert(call: Any) -> Draft | None:
        rank = len(call.args[0].ty.shape)
        axes = sorted(int(axis) % rank for axis in call.attrs.axes)
        if axes != list(range(rank - len(axes), rank)):
            return None
        shape = [int(extent) for extent in call.args[0].ty.shape][rank - len(axes) :]
        options = {"normalized_shape": shape, "eps": float(call.attrs.epsilon)}
        return function, list(call.args), options

    return convert


def _group_norm(call: Any) -> Draft | None:
    attrs = call.attrs
    if int(attrs.channel_axis) != 1:
        return None
    options = {"num_groups": int(attrs.num_groups), "eps": float(attrs.epsilon)}
    return "group_norm", list(call.args), options


def _convolution(n_spatial: int, transposed: bool) -> Conversion:
    def convert(call: Any) -> Draft | None:
        attrs = call.attrs
        padding = _even(attrs.padding, n_spatial)
        spatial = {1: "W", 2: "HW", 3: "DHW"}[n_spatial]
        layouts = f"NC{spatial}", f"{'IO' if transposed else 'OI'}{spatial}"
        if padding is None or (attrs.data_layout, attrs.kernel_layout) != layouts:
            return None
        options: dict[str, Any] = {
            "stride": list(map(int, attrs.strides)),
            "padding": padding,
            "dilation": list(map(int, attrs.dilation)),
            "groups": int(attrs.groups),
        }
        if transposed:
            options["output_padding"] = list(map(int, attrs.output_padding))
        name = f"conv_transpose{n_spatial}d" if transposed else f"conv{n_spatial}d"
        return name, list(call.args), options

    return convert


def _pooling(kind: str, n_spatial: int) -> Conversion:
    def convert(call: Any) -> Draft | None:
        attrs = call.attrs
        padding = _even(attrs.padding, n_spatial)
        if padding is None or not str(attrs.layout).startswith("NC"):
            return None
        options: dict[str, Any] = {
            "kernel_size": list(map(int, attrs.pool_size)),
            "stride": list(map(int, attrs.strides)),
            "padding": padding,
            "ceil_mode": bool(attrs.ceil_mode),
        }
        dilation = list(map(int, attrs.dilation))
        if kind == "max":
            options["dilation"] = dilation
        elif set(dilation) != {1}:
            return None
        else:
            options["count_include_pad"] = bool(attrs.count_include_pad)
        return f"{kind}_pool{n_spatial}d", list(call.args), options

    return convert


def _adaptive_pooling(n_spatial: int) -> Conversion:
    def convert(call: Any) -> Draft | None:
        size = call.attrs.output_size
        if size is None or not str(call.attrs.layout).startswith("NC"):
            return None
        options = {"output_size": list(map(int, size))}
        return f"adaptive_avg_pool{n_spatial}d", list(call.args), options

    return convert


def _shaped(function: str) -> Conversion:
    """What the shape of its result says."""

    def convert(call: Any) -> Draft | None:
        shape = _known_shape(call)
        return None if shape is None else (function, [call.args[0]], {"shape": shape})

    return convert


def _permutation(call: Any) -> Draft:
    (x,) = call.args
    axes = call.attrs.axes
    if axes is None:
        axes = reversed(range(len(x.ty.shape)))
    return "permute", [x], {"dims": list(map(int, axes))}


def _slice(call: Any) -> Draft | None:
    """A range of one axis, every element of it."""
    x, *lists = call.args
    axes, begin, _, *strides = [[_integer(each) for each in values.fields] for values in lists]
    shape = _known_shape(call)
    if shape is None or len(axes) != 1 or strides not in ([], [[1]]):
        return None
    dim, start = axes[0] % len(shape), begin[0]
    start += int(x.ty.shape[dim]) if start < 0 else 0
    return "narrow", [x], {"dim": dim, "start": start, "length": shape[dim]}


def _split(call: Any) -> Draft:
    """Its result is several tensors, so it is no form by itself (`forms.splits`)."""
    dim = int(call.attrs.axis) % len(call.args[0].ty.shape)
    sizes = [int(field.shape[dim]) for field in call.ty.fields]
    return "split", [call.args[0]], {"dim": dim, "sizes": sizes}


def _integer(value: Any) -> int:
    return int(getattr(value, "value", value))


def _concatenation(call: Any) -> Draft | None:
    parts = getattr(call.args[0], "fields", None)
    if parts is None or call.attrs.axis is None:
        return None
    return "cat", [list(parts)], {"dim": int(call.attrs.axis)}


def _take(call: Any) -> Draft | None:
    """Elements along an axis; rows of a matrix as an embedding takes them."""
    table, indices = call.args
    rank, axis = len(table.ty.shape), call.attrs.axis
    if str(call.attrs.mode) != "fast" or (axis is None and rank != 1):
        return None
    dim = 0 if axis is None else int(axis) % rank
    if (dim, rank) == (0, 2):
        return "embedding", [table, indices], {}
    return "take", [table, indices], {"dim": dim}


def _even(padding: Sequence[Any], n_spatial: int) -> list[int] | None:
    """The padding of each spatial axis, if it is the same on both sides."""
    values = [int(value) for value in padding]
    if len(values) == n_spatial:
        return values
    return values[:n_spatial] if values[:n_spatial] == values[n_spatial:] else None


def _known_shape(value: Any) -> list[int] | None:
    """The shape; None where data decide it."""
    extents = None if value.ty.shape is None else list(value.ty.shape)
    if extents is None or not all(isinstance(each, tvm.tirx.IntImm) for each in extents):
        return None
    return [int(extent) for extent in extents]


#: By the operator's name without "relax.".
CONVERSIONS: Mapping[str, Conversion] = {
    **{name: _plain(name) for name in _SAME},
    **{name: _plain(function) for name, function in _ACTIVATIONS.items()},
    "nn.gelu_tanh": lambda call: ("gelu", list(call.args), {"approximate": "tanh"}),
    "nn.leakyrelu": _plain("leaky_relu", negative_slope="alpha"),
    "nn.softplus": _plain("softplus", beta="beta", threshold="threshold"),
    "clip": _clip,
    "astype": _plain("to"),
    "sum": _reduction("sum"),
    "mean": _reduction("mean"),
    "max": _reduction("amax"),
    "min": _reduction("amin"),
    "variance": _reduction("var"),
    "std": _reduction("std"),
    "argmax": _index_reduction("argmax"),
    "argmin": _index_reduction("argmin"),
    "nn.softmax": _softmax("softmax"),
    "nn.log_softmax": _softmax("log_softmax"),
    "nn.layer_norm": _norm("layer_norm"),
    "nn.rms_norm": _norm("rms_norm"),
    "nn.group_norm": _group_norm,
    **{f"nn.conv{n}d": _convolution(n, False) for n in (1, 2, 3)},
    **{f"nn.conv{n}d_transpose": _convolution(n, True) for n in (1, 2, 3)},
    **{f"nn.max_pool{n}d": _pooling("max", n) for n in (1, 2, 3)},
    **{f"nn.avg_pool{n}d": _pooling("avg", n) for n in (1, 2, 3)},
    **{f"nn.adaptive_avg_pool{n}d": _adaptive_pooling(n) for n in (1, 2, 3)},
    **{name: _shaped("reshape") for name in ("reshape", "expand_dims", "squeeze", "flatten")},
    "broadcast_to": _shaped("expand"),
    "permute_dims": _permutation,
    "strided_slice": _slice,
    "split": _split,
    "concat": _concatenation,
    "take": _take,
}
