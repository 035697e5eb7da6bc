"""Convolutions in 1, 2 and 3 dimensions, grouped and depthwise.

Layouts: channels last ("NWC", "NHWC", "NDHWC"; kernel spatial axes, input channels per group,
output channels) or channels first ("NCW", "NCHW", "NCDHW"; kernel output channels, input
channels per group, spatial axes).
These are the kernel orders of TensorFlow and of PyTorch. Padding is symmetric.
Output extent of an axis: (extent + 2·padding - dilation·(kernel - 1) - 1) // stride + 1.
Reads `common`; feeds `catalogue`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Literal

from tvm import te, tirx

from felix import errors, task
from felix.workloads import common


@dataclasses.dataclass(frozen=True, slots=True)
class Window:
    """A sliding window over `extents`: one entry per spatial axis in every field."""

    extents: tuple[int, ...]
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]

    @property
    def outputs(self) -> tuple[int, ...]:
        """Output extents; below 1 where the kernel does not fit."""
        spans = zip(
            self.extents, self.kernel, self.stride, self.padding, self.dilation, strict=True
        )
        return tuple((e + 2 * p - d * (k - 1) - 1) // s + 1 for e, k, s, p, d in spans)

    @property
    def tag(self) -> str:
        """Kernel, stride, padding and dilation in a task name; defaults left out."""
        text = "k" + "x".join(map(str, self.kernel))
        for letter, values, default in (
            ("s", self.stride, 1),
            ("p", self.padding, 0),
            ("d", self.dilation, 1),
        ):
            if any(value != default for value in values):
                text += f"_{letter}" + "x".join(map(str, values))
        return text


def window(
    owner: str,
    extents: tuple[int, ...],
    kernel: int | Sequence[int],
    stride: int | Sequence[int],
    padding: int | Sequence[int],
    dilation: int | Sequence[int],
) -> Window:
    """Build a window from per-axis or common values; the kernel must fit."""
    rank = len(extents)
    made = Window(
        extents,
        common.per_axis(f"{owner}: kernel", kernel, rank),
        common.per_axis(f"{owner}: stride", stride, rank),
        common.per_axis(f"{owner}: padding", padding, rank),
        common.per_axis(f"{owner}: dilation", dilation, rank),
    )
    if min(made.outputs) < 1:
        raise errors.WorkloadError(
            f"{owner}: the kernel {made.kernel} with dilation {made.dilation} is larger than "
            f"the padded input {made.extents} + 2·{made.padding}"
        )
    return made


def place(layout: str, n: Any, c: Any, spatial: Sequence[Any]) -> tuple[Any, ...]:
    """(n, c, spatial...) in the order of the layout."""
    return (n, *spatial, c) if layout.endswith("C") else (n, c, *spatial)


def split(layout: str, index: Sequence[Any]) -> tuple[Any, Any, list[Any]]:
    """The inverse of `place`: (n, c, spatial) of an index in the layout's order."""
    if layout.endswith("C"):
        return index[0], index[-1], list(index[1:-1])
    return index[0], index[1], list(index[2:])


def pad(data: common.Tensor, layout: str, win: Window, value: Any) -> common.Tensor:
    """The data with `win.padding` cells of `value` around its spatial axes."""
    if not any(win.padding):
        return data
    n, c, _ = split(layout, common.shape_of(data))
    padded = [e + 2 * p for e, p in zip(win.extents, win.padding, strict=True)]

    def body(*index: Any) -> Any:
        i, ch, at = split(layout, index)
        moved, inside = [], []
        for x, p, extent in zip(at, win.padding, win.extents, strict=True):
            moved.append(x - p if p else x)
            inside += [x >= p, x < extent + p] if p else []
        return tirx.if_then_else(tirx.all(*inside), data[place(layout, i, ch, moved)], value)

    return common.compute("pad", place(layout, n, c, padded), body)


def _convolve(
    owner: str,
    spatial: tuple[int, ...],
    win: Window,
    channels: tuple[int, int, int],
    groups: int,
    layout: str,
    epilogue: Sequence[str],
    dtype: str,
    target: common.TargetLike,
) -> task.Task:
    n, ci, co = channels
    if ci % groups or co % groups:
        raise errors.WorkloadError(
            f"{owner}: groups must divide ci and co, got groups={groups}, ci={ci}, co={co}"
        )
    per_group = ci // groups
    channels_last = layout.endswith("C")
    data = common.placeholder("data", place(layout, n, ci, spatial), dtype)
    kernel_shape = (*win.kernel, per_group, co) if channels_last else (co, per_group, *win.kernel)
    kernel = common.placeholder("kernel", kernel_shape, dtype)
    padded = pad(data, layout, win, common.const(0.0, data))
    taps = [common.reduce_axis(f"r{letter}", k) for letter, k in zip(
        "dhw"[3 - len(spatial):], win.kernel, strict=True)]  # fmt: skip
    depthwise = per_group == 1 and groups > 1
    rc = None if depthwise else common.reduce_axis("rc", per_group)

    def body(*index: Any) -> Any:
        i, oc, at = split(layout, index)
        moved = [
            x * s + r * d for x, s, r, d in zip(at, win.stride, taps, win.dilation, strict=True)
        ]
        group = oc if co == groups else te.indexdiv(oc, co // groups)
        ic = (group if groups > 1 else 0) if rc is None else rc
        ic = group * per_group + rc if groups > 1 and rc is not None else ic
        inner = 0 if rc is None else rc
        weight = kernel[(*taps, inner, oc) if channels_last else (oc, inner, *taps)]
        value = common.wide(padded[place(layout, i, ic, moved)]) * common.wide(weight)
        return te.sum(value, axis=[*([] if rc is None else [rc]), *taps])

    kind = "depthwise_" if depthwise else ""
    out_shape = place(layout, n, co, win.outputs)
    result = common.compute(f"{kind}{owner}", out_shape, body)
    extra, output = common.add_epilogue(
        result, epilogue, len(out_shape) - 1 if channels_last else 1, dtype
    )
    name = common.name_of(
        f"{kind}{owner}",
        (n, *spatial, ci, co),
        win.tag,
        f"g{groups}" if groups > 1 and not depthwise else "",
        "" if channels_last else layout.lower(),
        *epilogue,
        "" if dtype == "float32" else dtype,
    )
    return common.finish(name, [data, kernel, *extra, output], target)


@common.operator
def conv1d(
    n: common.Extent,
    w: common.Extent,
    ci: common.Extent,
    co: common.Extent,
    kernel: common.PerAxis = 3,
    *,
    stride: common.PerAxis = 1,
    padding: common.Padding = 0,
    dilation: common.PerAxis = 1,
    groups: common.Extent = 1,
    layout: Literal["NWC", "NCW"] = "NWC",
    epilogue: common.Epilogue = (),
    dtype: common.DType = "float32",
    target: common.TargetLike = "llvm",
) -> task.Task:
    """Convolution over one axis.

    Args:
        n: batch.
        w: input width.
        ci, co: input and output channels.
        kernel: kernel width.
        stride: step of the window.
        padding: zeros added at both ends.
        dilation: distance between kernel taps.
        groups: channel groups; groups = ci makes it depthwise (co must be a multiple of ci).
        layout: order of the data axes.
        epilogue: stages of bias ([co]), relu, gelu (erf), residual (tensor of the result's shape).
        dtype: type of inputs and output.
        target: what to tune for.
    """
    win = window("conv1d", (w,), kernel, stride, padding, dilation)
    return _convolve("conv1d", (w,), win, (n, ci, co), groups, layout, epilogue, dtype, target)


@common.operator
def conv2d(
    n: common.Extent,
    h: common.Extent,
    w: common.Extent,
    ci: common.Extent,
    co: common.Extent,
    kernel: common.PerAxis = 3,
    *,
    stride: common.PerAxis = 1,
    padding: common.Padding = 0,
    dilation: common.PerAxis = 1,
    groups: common.Extent = 1,
    layout: Literal["NHWC", "NCHW"] = "NHWC",
    epilogue: common.Epilogue = (),
    dtype: common.DType = "float32",
    target: common.TargetLike = "llvm",
) -> task.Task:
    """Convolution over two axes.

    Args:
        n: batch.
        h, w: input height and width.
        ci, co: input and output channels.
        kernel: kernel extents.
        stride: step of the window.
        padding: zeros added at both ends of each axis.
        dilation: distance between kernel taps.
        groups: channel groups; groups = ci makes it depthwise (co must be a multiple of ci).
        layout: order of the data axes.
        epilogue: stages of bias ([co]), relu, gelu (erf), residual (tensor of the result's shape).
        dtype: type of inputs and output.
        target: what to tune for.
    """
    win = window("conv2d", (h, w), kernel, stride, padding, dilation)
    return _convolve("conv2d", (h, w), win, (n, ci, co), groups, layout, epilogue, dtype, target)


@common.operator
def conv3d(
    n: common.Extent,
    d: common.Extent,
    h: common.Extent,
    w: common.Extent,
    ci: common.Extent,
    co: common.Extent,
    kernel: common.PerAxis = 3,
    *,
    stride: common.PerAxis = 1,
    padding: common.Padding = 0,
    dilation: common.PerAxis = 1,
    groups: common.Extent = 1,
    layout: Literal["NDHWC", "NCDHW"] = "NDHWC",
    epilogue: common.Epilogue = (),
    dtype: common.DType = "float32",
    target: common.TargetLike = "llvm",
) -> task.Task:
    """Convolution over three axes.

    Args:
        n: batch.
        d, h, w: input depth, height and width.
        ci, co: input and output channels.
        kernel: kernel extents.
        stride: step of the window.
        padding: zeros added at both ends of each axis.
        dilation: distance between kernel taps.
        groups: channel groups; groups = ci makes it depthwise (co must be a multiple of ci).
        layout: order of the data axes.
        epilogue: stages of bias ([co]), relu, gelu (erf), residual (tensor of the result's shape).
        dtype: type of inputs and output.
        target: what to tune for.
    """
    spatial = (d, h, w)
    win = window("conv3d", spatial, kernel, stride, padding, dilation)
    return _convolve("conv3d", spatial, win, (n, ci, co), groups, layout, epilogue, dtype, target)


@common.operator
def depthwise_conv2d(
    n: common.Extent,
    h: common.Extent,
    w: common.Extent,
    c: common.Extent,
    kernel: common.PerAxis = 3,
    *,
    multiplier: common.Extent = 1,
    stride: common.PerAxis = 1,
    padding: common.Padding = 0,
    dilation: common.PerAxis = 1,
    layout: Literal["NHWC", "NCHW"] = "NHWC",
    epilogue: common.Epilogue = (),
    dtype: common.DType = "float32",
    target: common.TargetLike = "llvm",
) -> task.Task:
    """2-D convolution of every channel on its own: conv2d with groups = c.

    Args:
        n: batch.
        h, w: input height and width.
        c: input channels.
        kernel: kernel extents.
        multiplier: output channels per input channel.
        stride: step of the window.
        padding: zeros added at both ends of each axis.
        dilation: distance between kernel taps.
        layout: order of the data axes.
        epilogue: stages of bias, relu, gelu (erf), residual (tensor of the result's shape).
        dtype: type of inputs and output.
        target: what to tune for.
    """
    win = window("depthwise_conv2d", (h, w), kernel, stride, padding, dilation)
    channels = (n, c, c * multiplier)
    return _convolve("conv2d", (h, w), win, channels, c, layout, epilogue, dtype, target)
