"""Transposed 2-D convolution: the gradient of a convolution with respect to its input.

The input cells are spread `stride` apart with zeros between, and that image is correlated with
the flipped kernel, so the program also multiplies the zeros (its FLOPs count them).
Kernel layouts: NHWC: [kh, kw, ci, co]; NCHW: [ci, co, kh, kw] (PyTorch's).
"""

from __future__ import annotations

from typing import Any, Literal

from tvm import te, tirx

from felix import errors, task
from felix.workloads import common, convolution, dtypes, pointwise


@common.operator
def conv_transpose2d(
    n: common.Extent,
    h: common.Extent,
    w: common.Extent,
    ci: common.Extent,
    co: common.Extent,
    kernel: common.PerAxis = 4,
    *,
    stride: common.PerAxis = 2,
    padding: common.Padding = 1,
    output_padding: common.Padding = 0,
    layout: Literal["NHWC", "NCHW"] = "NHWC",
    epilogue: common.Epilogue = (),
    dtype: dtypes.Factor = "float32",
    out_dtype: dtypes.Output | None = None,
    target: common.TargetLike = "llvm",
) -> task.Task:
    """Transposed convolution over two axes: the input spread by `stride`, then convolved.

    Output extent of an axis: (extent - 1)·stride - 2·padding + kernel + output_padding.

    Args:
        kernel: kernel extents; at least padding + 1 on each axis.
        stride: distance of the input cells in the output.
        padding: cells cut from both ends of each output axis.
        output_padding: cells added at the end of each output axis; less than stride.
    """
    owner = "conv_transpose2d"
    out = dtypes.output(owner, dtype, out_dtype, epilogue)
    sizes = {"kernel": kernel, "stride": stride, "padding": padding, "dilation": 1}
    win = convolution.sliding(owner, (h, w), sizes)
    extra_cells = common.per_axis(f"{owner}: output_padding", output_padding, 2)
    outputs = _transposed_outputs(owner, win, extra_cells)
    channels_last = layout.endswith("C")
    data = common.placeholder("data", convolution.place(layout, n, ci, (h, w)), dtype)
    kernel_shape = (*win.kernel, ci, co) if channels_last else (ci, co, *win.kernel)
    weights = common.placeholder("kernel", kernel_shape, dtype)
    spread = _spread(data, layout, win, outputs)
    rc = common.reduce_axis("rc", ci)
    taps = [common.reduce_axis(f"r{a}", k) for a, k in zip("hw", win.kernel, strict=True)]

    def body(*index: Any) -> Any:
        i, oc, at = convolution.split(layout, index)
        moved = [x + r for x, r in zip(at, taps, strict=True)]
        flipped = [k - 1 - r for k, r in zip(win.kernel, taps, strict=True)]
        weight = weights[(*flipped, rc, oc) if channels_last else (rc, oc, *flipped)]
        value = common.wide(spread[convolution.place(layout, i, rc, moved)]) * common.wide(weight)
        return te.sum(value, axis=[rc, *taps])

    result = common.compute(owner, convolution.place(layout, n, co, outputs), body)
    extra, output = pointwise.add(result, epilogue, 3 if channels_last else 1, out)
    cells = f"op{extra_cells[0]}x{extra_cells[1]}" if any(extra_cells) else ""
    tags = (win.tag, cells, "" if channels_last else layout.lower(), *epilogue)
    name = common.name_of(owner, (n, h, w, ci, co), *tags, dtypes.tag(dtype, out))
    return common.finish(name, [data, weights, *extra, output], target)


def _transposed_outputs(
    owner: str, win: convolution.Window, output_padding: tuple[int, ...]
) -> tuple[int, ...]:
    axes = list(zip(win.extents, win.kernel, win.stride, win.padding, output_padding, strict=True))
    if any(p >= k for _, k, _, p, _ in axes):
        raise errors.WorkloadError(f"{owner}: padding must be less than the kernel")
    if any(o >= s for _, _, s, _, o in axes):
        raise errors.WorkloadError(f"{owner}: output_padding must be less than stride")
    outputs = tuple((e - 1) * s - 2 * p + k + o for e, k, s, p, o in axes)
    if min(outputs) < 1:
        raise errors.WorkloadError(f"{owner}: the output would be empty: {outputs}")
    return outputs


def _spread(
    data: common.Tensor, layout: str, win: convolution.Window, outputs: tuple[int, ...]
) -> common.Tensor:
    """Input cells `stride` apart with zeros between, and the border a full correlation needs."""
    n, c, _ = convolution.split(layout, common.shape_of(data))
    border = [k - 1 - p for k, p in zip(win.kernel, win.padding, strict=True)]
    extents = [o + k - 1 for o, k in zip(outputs, win.kernel, strict=True)]

    def body(*index: Any) -> Any:
        i, ch, at = convolution.split(layout, index)
        moved, inside = [], []
        for x, b, s, extent in zip(at, border, win.stride, win.extents, strict=True):
            inside += [x >= b, x <= (extent - 1) * s + b]
            inside += [te.indexmod(x - b, s).equal(0)] if s > 1 else []
            moved.append(te.indexdiv(x - b, s) if s > 1 else x - b)
        cell = data[convolution.place(layout, i, ch, moved)]
        return tirx.if_then_else(tirx.all(*inside), cell, common.const(0.0, data))

    return common.compute("spread", convolution.place(layout, n, c, extents), body)
