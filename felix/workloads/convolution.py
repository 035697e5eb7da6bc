"""Convolutions in 1, 2 and 3 dimensions, grouped and depthwise.

Layouts: channels last ("NWC", "NHWC", "NDHWC"; kernel spatial axes, input channels per group,
output channels) or channels first ("NCW", "NCHW", "NCDHW"; kernel output channels, input
channels per group, spatial axes).
These are the kernel orders of TensorFlow and of PyTorch. Padding is symmetric.
Output extent of an axis: (extent + 2·padding - dilation·(kernel - 1) - 1) // stride + 1.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from tvm import te, tirx

from felix import errors, task
from felix.workloads import common, dtypes, pointwise


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


def sliding(
    owner: str, extents: tuple[int, ...], sizes: Mapping[str, int | Sequence[int]]
) -> Window:
    """A window of per-axis or common values of its other fields, by name."""
    rank = len(extents)
    given = sizes.items()
    return Window(extents, **{k: common.per_axis(f"{owner}: {k}", v, rank) for k, v in given})


def window(
    owner: str,
    extents: tuple[int, ...],
    kernel: int | Sequence[int],
    stride: int | Sequence[int],
    padding: int | Sequence[int],
    dilation: int | Sequence[int],
) -> Window:
    """Build a window from per-axis or common values; the kernel must fit."""
    sizes = {"kernel": kernel, "stride": stride, "padding": padding, "dilation": dilation}
    made = sliding(owner, extents, sizes)
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


@dataclasses.dataclass(frozen=True, slots=True)
class Convolution:
    """The parameters all convolutions share; `groups` = `ci` makes it depthwise."""

    owner: str
    window: Window
    n: int
    ci: int
    co: int
    groups: int
    layout: str
    dtype: str
    out_dtype: str | None

    @property
    def channels_last(self) -> bool:
        """Whether channels are the innermost axis of the data."""
        return self.layout.endswith("C")

    @property
    def per_group(self) -> int:
        """Input channels of one group."""
        return self.ci // self.groups

    @property
    def kind(self) -> str:
        """Name of the block and the task."""
        return f"depthwise_{self.owner}" if self.is_depthwise else self.owner

    @property
    def is_depthwise(self) -> bool:
        """Whether every group has one input channel, so no reduction over channels."""
        return self.per_group == 1 and self.groups > 1

    @property
    def kernel_shape(self) -> tuple[int, ...]:
        """Extents of the kernel tensor in the layout's order."""
        if self.channels_last:
            return (*self.window.kernel, self.per_group, self.co)
        return (self.co, self.per_group, *self.window.kernel)

    def task_name(self, epilogue: Sequence[str], out_dtype: str) -> str:
        """Extents, window and what differs from the defaults."""
        extents = (self.n, *self.window.extents, self.ci, self.co)
        groups = f"g{self.groups}" if self.groups > 1 and not self.is_depthwise else ""
        layout = "" if self.channels_last else self.layout.lower()
        dtype = dtypes.tag(self.dtype, out_dtype)
        return common.name_of(
            self.kind, extents, self.window.tag, groups, layout, *epilogue, dtype
        )


def _convolve(conv: Convolution, epilogue: Sequence[str], target: common.TargetLike) -> task.Task:
    if conv.ci % conv.groups or conv.co % conv.groups:
        raise errors.WorkloadError(
            f"{conv.owner}: groups must divide ci and co, got groups={conv.groups}, "
            f"ci={conv.ci}, co={conv.co}"
        )
    out_dtype = dtypes.output(conv.owner, conv.dtype, conv.out_dtype, epilogue)
    data_shape = place(conv.layout, conv.n, conv.ci, conv.window.extents)
    data = common.placeholder("data", data_shape, conv.dtype)
    kernel = common.placeholder("kernel", conv.kernel_shape, conv.dtype)
    padded = pad(data, conv.layout, conv.window, common.const(0.0, data))
    out_shape = place(conv.layout, conv.n, conv.co, conv.window.outputs)
    result = common.compute(conv.kind, out_shape, _products(conv, padded, kernel))
    channel_axis = len(out_shape) - 1 if conv.channels_last else 1
    extra, output = pointwise.add(result, epilogue, channel_axis, out_dtype)
    name = conv.task_name(epilogue, out_dtype)
    return common.finish(name, [data, kernel, *extra, output], target)


def _products(
    conv: Convolution, padded: common.Tensor, kernel: common.Tensor
) -> Callable[..., Any]:
    """The sum of products over channels of the group and kernel taps, at an output index."""
    win = conv.window
    letters = "dhw"[3 - len(win.extents) :]
    taps = [common.reduce_axis(f"r{a}", k) for a, k in zip(letters, win.kernel, strict=True)]
    rc = [] if conv.is_depthwise else [common.reduce_axis("rc", conv.per_group)]

    def body(*index: Any) -> Any:
        i, oc, at = split(conv.layout, index)
        steps = zip(at, win.stride, taps, win.dilation, strict=True)
        moved = [x * s + r * d for x, s, r, d in steps]
        inner = rc[0] if rc else 0
        weight = kernel[(*taps, inner, oc) if conv.channels_last else (oc, inner, *taps)]
        cell = padded[place(conv.layout, i, _input_channel(conv, oc, inner), moved)]
        return te.sum(common.wide(cell) * common.wide(weight), axis=[*rc, *taps])

    return body


def _input_channel(conv: Convolution, oc: Any, inner: Any) -> Any:
    """The input channel of output channel `oc` and channel `inner` of its group."""
    if conv.groups == 1:
        return inner
    group = oc if conv.co == conv.groups else te.indexdiv(oc, conv.co // conv.groups)
    return group if conv.is_depthwise else group * conv.per_group + inner


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
    dtype: dtypes.Factor = "float32",
    out_dtype: dtypes.Output | None = None,
    target: common.TargetLike = "llvm",
) -> task.Task:
    """Convolution over one axis.

    Args:
        w: input width.
        kernel: kernel width.
        padding: zeros added at both ends.
    """
    win = window("conv1d", (w,), kernel, stride, padding, dilation)
    conv = Convolution("conv1d", win, n, ci, co, groups, layout, dtype, out_dtype)
    return _convolve(conv, epilogue, target)


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
    dtype: dtypes.Factor = "float32",
    out_dtype: dtypes.Output | None = None,
    target: common.TargetLike = "llvm",
) -> task.Task:
    """Convolution over two axes.

    Args:
        padding: zeros added at both ends of each axis.
    """
    win = window("conv2d", (h, w), kernel, stride, padding, dilation)
    conv = Convolution("conv2d", win, n, ci, co, groups, layout, dtype, out_dtype)
    return _convolve(conv, epilogue, target)


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
    dtype: dtypes.Factor = "float32",
    out_dtype: dtypes.Output | None = None,
    target: common.TargetLike = "llvm",
) -> task.Task:
    """Convolution over three axes.

    Args:
        d, h, w: input depth, height and width.
        padding: zeros added at both ends of each axis.
    """
    win = window("conv3d", (d, h, w), kernel, stride, padding, dilation)
    conv = Convolution("conv3d", win, n, ci, co, groups, layout, dtype, out_dtype)
    return _convolve(conv, epilogue, target)


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
    dtype: dtypes.Factor = "float32",
    out_dtype: dtypes.Output | None = None,
    target: common.TargetLike = "llvm",
) -> task.Task:
    """2-D convolution of every channel on its own: conv2d with groups = c.

    Args:
        c: input channels.
        multiplier: output channels per input channel.
        padding: zeros added at both ends of each axis.
        epilogue: stages of bias, relu, gelu (erf), residual (tensor of the result's shape), scale
            and scalar_scale, as for gemm.
    """
    win = window("depthwise_conv2d", (h, w), kernel, stride, padding, dilation)
    conv = Convolution("conv2d", win, n, c, c * multiplier, c, layout, dtype, out_dtype)
    return _convolve(conv, epilogue, target)
