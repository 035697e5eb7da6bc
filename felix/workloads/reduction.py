"""Reductions, pooling, softmax and normalisations.

`shape` is the input shape; `axes` may be negative. Variances are two-pass (mean first, then the
mean of squared differences), so a large mean does not cancel.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal

from tvm import te, tirx

from felix import errors, task
from felix.workloads import common, convolution, dtypes

Combine = Callable[..., Any]
_COMBINE: dict[str, Combine] = {
    "sum": te.sum,
    "mean": te.sum,
    "avg": te.sum,
    "max": te.max,
    "min": te.min,
}


def reduced(
    name: str,
    shape: Sequence[int],
    axes: Sequence[int],
    combine: Combine,
    read: Callable[..., Any],
    keepdims: bool = False,
) -> common.Tensor:
    """Reduce `read(*index)` over `axes` of `shape`."""
    inner = {axis: common.reduce_axis(f"r{axis}", shape[axis]) for axis in axes}
    outer = [axis for axis in range(len(shape)) if keepdims or axis not in inner]
    out_shape = [1 if axis in inner else shape[axis] for axis in outer]

    def body(*index: Any) -> Any:
        at = dict(zip(outer, index, strict=True)) | inner
        return combine(read(*(at[axis] for axis in range(len(shape)))), axis=list(inner.values()))

    return common.compute(name, out_shape, body)


def unreduced(index: Sequence[Any], axes: Sequence[int]) -> tuple[Any, ...]:
    """The index without the reduced axes."""
    return tuple(at for axis, at in enumerate(index) if axis not in axes)


def _share(shape: Sequence[int], axes: Sequence[int]) -> float:
    """One over the elements along the axes."""
    return 1.0 / float(math.prod(shape[axis] for axis in axes))


def _over(axes: Sequence[int]) -> str:
    """Reduced axes in a task's name."""
    return "over" + "x".join(map(str, axes))


def _wide(x: common.Tensor) -> Callable[..., Any]:
    return lambda *index: common.wide(x[index])


def _scaled(name: str, total: common.Tensor, factor: float) -> common.Tensor:
    scale = common.const(factor, total)
    return common.compute(name, common.shape_of(total), lambda *i: total[i] * scale)


def _inverse_root(name: str, total: common.Tensor, factor: float, plus: float) -> common.Tensor:
    """1 / √(total · factor + plus)."""
    scale, epsilon = common.const(factor, total), common.const(plus, total)
    return common.compute(
        name, common.shape_of(total), lambda *i: te.rsqrt(total[i] * scale + epsilon)
    )


@common.operator
def reduce(
    shape: common.Shape,
    axes: common.Axes | None = None,
    *,
    kind: Literal["sum", "max", "min", "mean"] = "sum",
    keepdims: bool = False,
    dtype: dtypes.Ordered = "float32",
    target: common.TargetLike = "llvm",
) -> task.Task:
    """Sum, maximum, minimum or mean over any axes.

    Args:
        axes: axes to reduce; all of them when left out.
        kind: what to compute.
        keepdims: keep reduced axes with extent 1.
        dtype: type of input and output; int8 for max and min.
    """
    dtypes.check_reduced("reduce", kind, dtype)
    over = common.resolve_axes("reduce: axes", axes, len(shape))
    x = common.placeholder("x", shape, dtype)
    block = kind if kind != "mean" else "total"
    result = reduced(block, shape, over, _COMBINE[kind], _wide(x), keepdims)
    if kind == "mean":
        result = _scaled("mean", result, _share(shape, over))
    tags = (_over(over), "keep" if keepdims else "", dtypes.tag(dtype))
    name = common.name_of(f"reduce_{kind}", shape, *tags)
    return common.finish(name, [x, common.cast(result, dtype)], target)


@common.operator
def softmax(
    shape: common.Shape,
    axis: int = -1,
    *,
    dtype: dtypes.Float = "float32",
    target: common.TargetLike = "llvm",
) -> task.Task:
    """exp(x - max) / Σ exp(x - max) along one axis.

    Args:
        axis: the axis that sums to one.
        dtype: type of input and output.
    """
    over = common.resolve_axes("softmax: axis", (axis,), len(shape))
    x = common.placeholder("x", shape, dtype)
    read = _wide(x)
    highest = reduced("highest", shape, over, te.max, read)
    powers = common.compute(
        "powers", shape, lambda *i: te.exp(read(*i) - highest[unreduced(i, over)])
    )
    total = reduced("total", shape, over, te.sum, lambda *i: powers[i])
    result = common.compute("softmax", shape, lambda *i: powers[i] / total[unreduced(i, over)])
    name = common.name_of("softmax", shape, f"axis{over[0]}", dtypes.tag(dtype))
    return common.finish(name, [x, common.cast(result, dtype)], target)


@common.operator
def layer_norm(
    shape: common.Shape,
    axes: common.Axes = (-1,),
    *,
    affine: bool = True,
    epsilon: float = 1e-5,
    dtype: dtypes.Float = "float32",
    target: common.TargetLike = "llvm",
) -> task.Task:
    """(x - mean) / √(variance + epsilon) · gamma + beta, with a two-pass variance.

    Args:
        axes: normalised axes; gamma and beta have their extents.
        affine: multiply by gamma and add beta.
        epsilon: added to the variance.
        dtype: type of inputs and output.
    """
    over = common.resolve_axes("layer_norm: axes", axes, len(shape))
    x = common.placeholder("x", shape, dtype)
    read, share = _wide(x), _share(shape, over)
    mean = _scaled("mean", reduced("total", shape, over, te.sum, read), share)
    centred = common.compute("centred", shape, lambda *i: read(*i) - mean[unreduced(i, over)])
    squares = reduced("squares", shape, over, te.sum, lambda *i: centred[i] * centred[i])
    inverse = _inverse_root("inverse_deviation", squares, share, epsilon)
    weights = _affine(shape, over, ("gamma", "beta") if affine else (), dtype)

    def body(*index: Any) -> Any:
        value = centred[index] * inverse[unreduced(index, over)]
        if not affine:
            return value
        gamma, beta = (common.wide(w[tuple(index[axis] for axis in over)]) for w in weights)
        return value * gamma + beta

    result = common.compute("layer_norm", shape, body)
    tags = (_over(over), "" if affine else "plain", dtypes.tag(dtype))
    name = common.name_of("layer_norm", shape, *tags)
    return common.finish(name, [x, *weights, common.cast(result, dtype)], target)


def _affine(
    shape: Sequence[int], over: Sequence[int], names: Sequence[str], dtype: str
) -> list[common.Tensor]:
    return [common.placeholder(name, [shape[axis] for axis in over], dtype) for name in names]


@common.operator
def rms_norm(
    shape: common.Shape,
    axes: common.Axes = (-1,),
    *,
    epsilon: float = 1e-5,
    dtype: dtypes.Float = "float32",
    target: common.TargetLike = "llvm",
) -> task.Task:
    """x / √(mean of x² + epsilon) · gamma.

    Args:
        axes: normalised axes; gamma has their extents.
        epsilon: added to the mean of squares.
        dtype: type of inputs and output.
    """
    over = common.resolve_axes("rms_norm: axes", axes, len(shape))
    x = common.placeholder("x", shape, dtype)
    (gamma,) = _affine(shape, over, ("gamma",), dtype)
    read = _wide(x)
    squares = reduced("squares", shape, over, te.sum, lambda *i: read(*i) * read(*i))
    inverse = _inverse_root("inverse_rms", squares, _share(shape, over), epsilon)

    def body(*index: Any) -> Any:
        weight = common.wide(gamma[tuple(index[axis] for axis in over)])
        return read(*index) * inverse[unreduced(index, over)] * weight

    result = common.compute("rms_norm", shape, body)
    name = common.name_of("rms_norm", shape, _over(over), dtypes.tag(dtype))
    return common.finish(name, [x, gamma, common.cast(result, dtype)], target)


@common.operator
def pool2d(
    n: common.Extent,
    h: common.Extent,
    w: common.Extent,
    c: common.Extent,
    kernel: common.PerAxis = 2,
    *,
    kind: Literal["max", "avg"] = "max",
    stride: common.PerAxis = 2,
    padding: common.Padding = 0,
    dilation: common.PerAxis = 1,
    count_padding: bool = True,
    layout: Literal["NHWC", "NCHW"] = "NHWC",
    dtype: dtypes.Ordered = "float32",
    target: common.TargetLike = "llvm",
) -> task.Task:
    """Maximum or average over a sliding window.

    Args:
        c: channels.
        kernel: window extents.
        kind: maximum or average.
        padding: cells added at both ends of each axis (they never win a maximum).
        dilation: distance between window taps.
        count_padding: an average divides by the window's size, padding included; else by the
            number of input cells in the window.
        dtype: type of input and output; int8 for max.
    """
    dtypes.check_reduced("pool2d", kind, dtype)
    win = convolution.window("pool2d", (h, w), kernel, stride, padding, dilation)
    if any(p >= k for p, k in zip(win.padding, win.kernel, strict=True)):
        raise errors.WorkloadError("pool2d: padding must be less than the kernel")
    if kind == "avg" and not count_padding and any(d > 1 for d in win.dilation):
        raise errors.WorkloadError("pool2d: count_padding=false needs dilation 1")
    data = common.placeholder("data", convolution.place(layout, n, c, (h, w)), dtype)
    outside = tirx.min_value(dtype) if kind == "max" else common.const(0.0, data)
    padded = convolution.pad(data, layout, win, outside)
    taps = [common.reduce_axis(f"r{a}", k) for a, k in zip("hw", win.kernel, strict=True)]

    def body(*index: Any) -> Any:
        i, ch, at = convolution.split(layout, index)
        steps = zip(at, win.stride, taps, win.dilation, strict=True)
        cell = padded[convolution.place(layout, i, ch, [x * s + r * d for x, s, r, d in steps])]
        return _COMBINE[kind](common.wide(cell), axis=taps)

    out_shape = convolution.place(layout, n, c, win.outputs)
    result = common.compute("max_pool" if kind == "max" else "window_sum", out_shape, body)
    if kind == "avg":
        result = _average(result, layout, win, count_padding)
    tags = (win.tag, "" if count_padding else "valid", "" if layout == "NHWC" else "nchw")
    name = common.name_of(f"{kind}_pool2d", (n, h, w, c), *tags, dtypes.tag(dtype))
    return common.finish(name, [data, common.cast(result, dtype)], target)


def _average(
    sums: common.Tensor, layout: str, win: convolution.Window, count_padding: bool
) -> common.Tensor:
    def body(*index: Any) -> Any:
        if count_padding or not any(win.padding):
            size = float(win.kernel[0] * win.kernel[1])
            return sums[index] * common.const(1.0 / size, sums)
        _, _, at = convolution.split(layout, index)
        cells: Any = 1
        for x, s, p, k, extent in zip(
            at, win.stride, win.padding, win.kernel, win.extents, strict=True
        ):
            first = te.max(x * s - p, tirx.IntImm("int64", 0))
            last = te.min(x * s - p + k, tirx.IntImm("int64", extent))
            cells = cells * (last - first)
        return sums[index] / cells.astype(common.dtype_of(sums))

    return common.compute("avg_pool", common.shape_of(sums), body)


@common.operator
def global_pool2d(
    n: common.Extent,
    h: common.Extent,
    w: common.Extent,
    c: common.Extent,
    *,
    kind: Literal["max", "avg"] = "avg",
    layout: Literal["NHWC", "NCHW"] = "NHWC",
    dtype: dtypes.Ordered = "float32",
    target: common.TargetLike = "llvm",
) -> task.Task:
    """Maximum or average over the whole image; the spatial axes stay with extent 1.

    Args:
        c: channels.
        kind: maximum or average.
        dtype: type of input and output; int8 for max.
    """
    dtypes.check_reduced("global_pool2d", kind, dtype)
    shape = convolution.place(layout, n, c, (h, w))
    over = (1, 2) if layout == "NHWC" else (2, 3)
    data = common.placeholder("data", shape, dtype)
    block = "global_max" if kind == "max" else "total"
    result = reduced(block, shape, over, _COMBINE[kind], _wide(data), keepdims=True)
    if kind == "avg":
        result = _scaled("global_avg", result, 1.0 / (h * w))
    tags = ("" if layout == "NHWC" else "nchw", dtypes.tag(dtype))
    name = common.name_of(f"global_{kind}_pool2d", (n, h, w, c), *tags)
    return common.finish(name, [data, common.cast(result, dtype)], target)
