"""Which conversion a node has: one of ours, or TVM's; and ours of shapes, norms and attention.

Notation: b batch, h heads, s and t rows of queries and keys, d extent of a head.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from tvm import relax

from felix import errors
from felix.frontend import layers
from felix.frontend.layers import dtype_of, shape_of
from felix.frontend.onnx import (
    arithmetic,
    constants,
    quantizing,
    recurrent,
    reductions,
    resizing,
    rules,
    windows,
)
from felix.frontend.onnx.node import Node
from felix.tir.rounding import HALF, accumulator

#: From this opset on operands are broadcast by their last axes.
_BROADCASTING = 7


def convert(node: Node, unroller: recurrent.Unroller) -> Any:
    """The Relax expression of a node, or None where TVM's own conversion holds.

    Raises:
        WorkloadError: operands or attributes that are not supported.
    """
    if node.operator in rules.GATES:
        return unroller.convert(node)
    if node.operator in resizing.OPERATORS:
        return resizing.convert(node)
    if node.operator in _REFUSED:
        raise errors.WorkloadError(_REFUSED[node.operator])
    if node.operator == "LRN" and not int(node.get("size")) % 2:
        raise errors.WorkloadError("its attribute 'size' is even, which is not supported")
    # Microsoft's operator of the name must have `num_heads`, ONNX's has no such attribute.
    if node.operator == "Attention" and "num_heads" not in node.attributes:
        return _attention(node)
    if node.opset < _BROADCASTING and "broadcast" in node.attributes:
        _align(node)
    own = _OWN.get(node.operator)
    return None if own is None else own(node)


def _align(node: Node) -> None:
    """Give an older operator's second operand the axes that it lacks behind its last one."""
    x, y = node[0], node[1]
    axis = int(node.get("axis", len(shape_of(x)) - len(shape_of(y))))
    if not node.get("broadcast") or axis < 0:
        return
    n_behind = max(len(shape_of(x)) - axis - len(shape_of(y)), 0)
    shape = [*shape_of(y), *[1] * n_behind]
    list.__setitem__(node.operands, 1, node.emit(relax.op.reshape(y, shape)))


def _expand(node: Node) -> Any:
    """A tensor of a known shape; TVM knows that of an initializer only when it is told."""
    x, shape = node[0], node.integers(1)
    extents = shape_of(x)
    # -1 is no extent of ONNX, but exporters write it for one that stays.
    target = np.broadcast_shapes(
        [1 if extent == -1 else extent for extent in shape or ()], extents
    )
    return x if list(target) == extents else node.emit(relax.op.broadcast_to(x, target))


def _compress(node: Node) -> Any:
    """The elements of a known choice; None where data choose."""
    x, chosen, axis = node[0], node.known(1), node.get("axis")
    if chosen is None:
        return None
    if axis is None:
        x, axis = node.emit(relax.op.reshape(x, [-1])), 0
    places = relax.const(np.flatnonzero(chosen).astype("int64"), "int64")
    return relax.op.take(x, places, int(axis)) if chosen.any() else None


def _one_hot(node: Node) -> Any:
    """The values [off, on] by index, in the type of the values, which TVM does not keep."""
    indices, number, dtype = node[0], node.value(1), "int64"
    if number is None:
        raise errors.WorkloadError("it has no depth")
    count = int(number.reshape(()))
    rank = len(shape_of(indices)) + 1
    axis = int(node.get("axis", -1)) % rank
    indices = node.cast(indices, dtype)
    indices = layers.from_the_beginning(node.emit, indices, count)
    indices = node.emit(relax.op.expand_dims(indices, axis))
    places = np.arange(count).reshape([-1] + [1] * (rank - axis - 1))
    is_on = node.emit(relax.op.equal(indices, relax.const(places, dtype)))
    off, on = _pair(node)
    return node.emit(relax.op.where(is_on, on, off))


def _pair(node: Node) -> list[Any]:
    """The two elements of the last operand, as constants where they are known."""
    values = node[2]
    known = constants.array(values, node.tables)
    if known is not None:
        return [relax.const(number, dtype_of(values)) for number in known]
    parts = [relax.op.strided_slice(values, [0], [i], [i + 1]) for i in range(2)]
    return [node.emit(part) for part in parts]


def _space_to_depth(node: Node) -> Any:
    """Blocks of places as channels: their places first, or with `mode` CRD the channels."""
    x, size = node[0], int(node.get("blocksize"))
    b, c, h, w = shape_of(x)
    blocks = node.emit(relax.op.reshape(x, [b, c, h // size, size, w // size, size]))
    axes = [0, 1, 3, 5, 2, 4] if node.get("mode", "DCR") == "CRD" else [0, 3, 5, 1, 2, 4]
    moved = node.emit(relax.op.permute_dims(blocks, axes))
    return node.emit(relax.op.reshape(moved, [b, c * size * size, h // size, w // size]))


def _eye_like(node: Node) -> Any:
    dtype = node.get("dtype")
    name = dtype_of(node[0]) if dtype is None else arithmetic.element_type(dtype)
    rows, columns = shape_of(node[0])
    return relax.const(np.eye(rows, columns, int(node.get("k", 0))), name)


def _range(node: Node) -> Any:
    """Numbers from a first one on, below a limit, of known steps."""
    first, limit, step = (node.value(i) for i in range(3))
    if first is None or limit is None or step is None:
        raise errors.WorkloadError("it lacks a limit or a step")
    dtype = dtype_of(node[0])
    if dtype in HALF and any(each.ndim for each in (first, limit, step)):
        raise errors.WorkloadError("its operands of 16 bits are no scalars")
    wide = "float64" if "float" in dtype else dtype
    parts = [each.astype(wide).reshape(()) for each in (first, limit, step)]
    if not parts[2]:
        raise errors.WorkloadError("its step is 0")
    count = max(0, int(np.ceil((parts[1] - parts[0]) / parts[2])))
    numbers = parts[0] + np.arange(count, dtype=wide) * parts[2]
    return relax.const(numbers, dtype)


def _dropout(node: Node) -> Any:
    """The tensor as it is in inference, and that nothing was dropped."""
    x = node[0]
    for index in (1, 2):
        _ = node[index]  # the ratio, which only training reads, and whether it trains
    if node[2] is not None:
        trains = node.value(2)
        ratio = node.value(1) if trains is not None and trains.any() else np.zeros(1)
        if ratio is None or ratio.any():
            raise errors.WorkloadError("training is not supported; export the model for inference")
    if node.opset < 7 and not node.get("is_test", 0):
        raise errors.WorkloadError("training is not supported; export the model for inference")
    return relax.Tuple([x, relax.op.full(x.ty.shape, relax.const(True, "bool"), "bool")])


def _batch_norm(node: Node) -> Any:
    """In inference: with the statistics that are given."""
    if node.get("training_mode", 0) or (node.opset < 7 and not node.get("is_test", 0)):
        raise errors.WorkloadError("training is not supported; export the model for inference")
    x, *statistics = (node[i] for i in range(5))
    if not node.get("spatial", 1) and len(shape_of(x)) > 2:
        raise errors.WorkloadError("statistics of each place are not supported")
    dtype = dtype_of(x)
    wide = accumulator(dtype)
    operands = [node.cast(each, wide) for each in (x, *statistics)]
    epsilon = float(node.get("epsilon", 1e-5))
    result = node.emit(relax.op.nn.batch_norm(*operands, axis=1, epsilon=epsilon, training=False))
    return node.cast(node.emit(relax.TupleGetItem(result, 0)), dtype)


def _normalise(node: Node) -> Any:
    """LpNormalization: over the norm along an axis, and 0 where that is 0."""
    x, p, axis = node[0], int(node.get("p", 2)), int(node.get("axis", -1))
    dtype = dtype_of(x)
    x = node.cast(x, accumulator(dtype))
    powers = node.emit(relax.op.abs(x) if p == 1 else relax.op.square(x))
    norm = node.emit(relax.op.sum(powers, [axis], True))
    norm = norm if p == 1 else node.emit(relax.op.sqrt(norm))
    zero = relax.const(0, dtype_of(x))
    result = node.emit(relax.op.divide(x, norm))
    is_zero = node.emit(relax.op.equal(norm, zero))
    return node.cast(node.emit(relax.op.where(is_zero, zero, result)), dtype)


def _normalise_moments(node: Node) -> Any:
    """MeanVarianceNormalization: less the mean, over the root of the variance."""
    x, axes = node[0], list(node.get("axes") or (0, 2, 3))
    dtype = dtype_of(x)
    x = node.cast(x, accumulator(dtype))
    x = node.emit(relax.op.subtract(x, node.emit(relax.op.mean(x, axes, True))))
    variance = node.emit(relax.op.mean(node.emit(relax.op.square(x)), axes, True))
    root = node.emit(relax.op.sqrt(variance))
    root = node.emit(relax.op.add(root, relax.const(1e-9, dtype_of(x))))
    return node.cast(node.emit(relax.op.divide(x, root)), dtype)


def _pad(node: Node) -> Any:
    """Pad, whose value need not be known; parts that are taken away where a pad is negative."""
    x, mode = node[0], node.get("mode", "constant")
    shape, dtype = shape_of(x), dtype_of(x)
    given = node.integers(1, "pads" if "pads" in node.attributes else "paddings")
    axes = node.integers(3) if node.opset >= 18 else None
    axes = list(range(len(shape))) if axes is None else [axis % len(shape) for axis in axes]
    if given is None or len(given) != 2 * len(axes):
        raise errors.WorkloadError("it has no pads, or those of other axes")
    pads = [(0, 0)] * len(shape)
    for i, axis in enumerate(axes):
        pads[axis] = (given[i], given[i + len(axes)])
    cut = [(max(0, -a), extent - max(0, -b)) for (a, b), extent in zip(pads, shape, strict=True)]
    if any(min(pair) < 0 for pair in pads):
        begins, ends = zip(*cut, strict=True)
        every = list(range(len(shape)))
        x = node.emit(relax.op.strided_slice(x, every, begins, ends, assume_inbound=True))
    wide = [max(0, each) for pair in pads for each in pair]
    value = float(node.get("value", 0.0)) if node.opset < 11 else node[2]
    if mode != "constant":
        return _padded_by_itself(node, x, wide, mode)
    number = np.asarray(0.0 if value is None else value) if node.opset < 11 else node.known(2)
    if node.opset >= 11 and value is None:
        number = np.asarray(0.0)
    if number is not None:
        number = number.reshape(())
        if "float" in dtype or int(float(number)) == int(number):
            return node.emit(relax.op.nn.pad(x, wide, "constant", float(number)))
        value = relax.const(number.astype(dtype), dtype)  # a float has no such integer
    pairs = [(wide[i], wide[i + 1]) for i in range(0, len(wide), 2)]
    is_inside = relax.const(np.pad(np.ones(shape_of(x), "bool"), pairs), "bool")
    padded = node.emit(relax.op.nn.pad(x, wide, "constant", 0.0))
    fill = node.emit(relax.op.reshape(node.cast(value, dtype), []))
    return node.emit(relax.op.where(is_inside, padded, fill))


def _padded_by_itself(node: Node, x: Any, pads: list[int], mode: str) -> Any:
    """By elements of the tensor: mirrored, repeated or from the other end."""
    if mode not in ("reflect", "edge", "wrap"):
        raise errors.WorkloadError("its mode is not supported")
    for axis, extent in enumerate(shape_of(x)):
        before, behind = pads[2 * axis : 2 * axis + 2]
        if before or behind:
            how: Any = mode
            places = np.pad(np.arange(extent), (before, behind), how)
            x = node.emit(relax.op.take(x, relax.const(places, "int32"), axis))
    return x


def _normalise_layer(node: Node) -> Any:
    """LayerNormalization and RMSNormalization; other outputs are left to ONNX's function."""
    x, *terms = (node[i] for i in range(3))
    rank, epsilon = len(shape_of(x)), float(node.get("epsilon", 1e-5))
    axes = list(range(int(node.get("axis", -1)) % rank, rank))
    node.get("stash_type", 1)
    shape = [shape_of(x)[axis] for axis in axes]
    scales = [
        node.emit(relax.op.broadcast_to(term, shape))
        if term is not None and shape_of(term) != shape
        else term
        for term in terms
    ]
    if node.operator == "RMSNormalization":
        return layers.rms_norm(node.emit, x, scales[0], shape, epsilon)
    operator = relax.op.nn.layer_norm
    return layers.norm(node.emit, operator, x, scales, shape, axes=axes, epsilon=epsilon)


def _normalise_groups(node: Node) -> Any:
    """InstanceNormalization and GroupNormalization."""
    x, *terms = (node[i] for i in range(3))
    channels = shape_of(x)[1]
    groups = int(node.get("num_groups", channels))
    node.get("stash_type", 1)
    if shape_of(terms[0]) != [channels]:  # of each group, before opset 21
        terms = [node.emit(relax.op.repeat(each, channels // groups, 0)) for each in terms]
    axes = list(range(2, len(shape_of(x))))
    epsilon = float(node.get("epsilon", 1e-5))
    options = {"num_groups": groups, "channel_axis": 1, "axes": axes, "epsilon": epsilon}
    return layers.norm(node.emit, relax.op.nn.group_norm, x, terms, [channels], **options)


def _reverse_sequence(node: Node) -> Any:
    """The first elements along one axis in reverse, as many as each place of another one says."""
    x, lengths = node[0], node.value(1)
    if lengths is None:
        raise errors.WorkloadError("it has no lengths")
    time, batch = int(node.get("time_axis", 0)), int(node.get("batch_axis", 1))
    shape = shape_of(x)
    steps = np.arange(shape[time])
    places = np.stack([np.where(steps < n, n - 1 - steps, steps) for n in lengths.tolist()])
    places = places if batch < time else places.T
    wide = [extent if axis in (time, batch) else 1 for axis, extent in enumerate(shape)]
    index = np.ascontiguousarray(np.broadcast_to(places.reshape(wide), shape))
    return node.emit(relax.op.gather_elements(x, relax.const(index, "int64"), time))


def _align_regions(node: Node) -> Any:
    """RoiAlign: means of bilinear samples in the bins of regions."""
    x, regions, batches = (node[i] for i in range(3))
    mode = node.get("mode", "avg")
    usual = "output_half_pixel" if node.opset < 16 else "half_pixel"
    way = node.get("coordinate_transformation_mode", usual)
    if mode != "avg" or way not in ("half_pixel", "output_half_pixel"):
        raise errors.WorkloadError("of its modes avg, half_pixel and output_half_pixel are there")
    before, scale = dtype_of(x), float(node.get("spatial_scale", 1.0))
    dtype = accumulator(before)
    x, regions = node.cast(x, dtype), node.cast(regions, dtype)
    if way == "half_pixel":  # behind the scale, which TVM's operator applies
        shift = relax.const(np.float64(-0.5 / scale).astype(dtype), dtype)
        regions = node.emit(relax.op.add(regions, shift))
    first = node.cast(node.emit(relax.op.expand_dims(batches, 1)), dtype)
    result = relax.op.vision.roi_align(
        x,
        node.emit(relax.op.concat([first, regions], 1)),
        pooled_size=(int(node.get("output_height", 1)), int(node.get("output_width", 1))),
        spatial_scale=scale,
        sample_ratio=int(node.get("sampling_ratio", 0)),
        aligned=way == "half_pixel",
        layout="NCHW",
        mode="avg",
    )
    return node.cast(node.emit(result), before)


def _optional(node: Node) -> Any:
    """A tensor where there may be none, and whether there is one."""
    x = node[0]
    if node.operator == "OptionalHasElement":
        return relax.const(x is not None, "bool")
    if x is None:
        raise errors.WorkloadError("it has no element")
    return x


def _attention(node: Node) -> Any:
    """ONNX's attention of [b, h, s, d] without what `expanding` writes out."""
    query, key, value, mask = (node[i] for i in range(4))
    if any(tensor is None for tensor in (query, key, value)):
        raise errors.WorkloadError("attention needs queries, keys and values")
    shapes = [shape_of(tensor) for tensor in (query, key, value)]
    if any(len(shape) != 4 for shape in shapes):
        raise errors.WorkloadError("attention needs tensors of four axes")
    (b, h, _, d), (_, heads, t, _), _ = shapes
    if shapes[1] != [b, heads, t, d] or shapes[2][:3] != [b, heads, t] or h % heads:
        raise errors.WorkloadError("shapes of queries, keys and values do not fit")
    scale, is_causal = node.get("scale"), bool(node.get("is_causal"))
    return layers.attention(node.emit, (query, key, value), mask, scale, is_causal)


_OF_SEQUENCES = frozenset(
    """
    ConcatFromSequence Optional SequenceAt SequenceConstruct SequenceEmpty SequenceErase
    SequenceInsert SequenceLength SplitToSequence
    """.split()
)
_OF_CHANCE = (
    "Bernoulli Multinomial RandomNormal RandomNormalLike RandomUniform RandomUniformLike".split()
)
#: Operators that are refused whatever their operands are, and why.
_REFUSED: Mapping[str, str] = {
    "NonMaxSuppression": "the shape of its result follows from data",
    **dict.fromkeys(_OF_CHANCE, "its result is random"),
    **dict.fromkeys(_OF_SEQUENCES, "sequences and optional values are not supported"),
}
#: Operators -> our conversions.
_OWN: Mapping[str, Callable[[Node], Any]] = {
    **reductions.CONVERSIONS,
    **arithmetic.CONVERSIONS,
    **quantizing.CONVERSIONS,
    **windows.CONVERSIONS,
    "AffineGrid": resizing.affine_grid,
    "BatchNormalization": _batch_norm,
    "Dropout": _dropout,
    "Expand": _expand,
    "EyeLike": _eye_like,
    "Compress": _compress,
    "GroupNormalization": _normalise_groups,
    "InstanceNormalization": _normalise_groups,
    "LayerNormalization": _normalise_layer,
    "LpNormalization": _normalise,
    "MeanVarianceNormalization": _normalise_moments,
    "OneHot": _one_hot,
    "OptionalGetElement": _optional,
    "OptionalHasElement": _optional,
    "Pad": _pad,
    "Range": _range,
    "ReverseSequence": _reverse_sequence,
    "RoiAlign": _align_regions,
    "RMSNormalization": _normalise_layer,
    "SpaceToDepth": _space_to_depth,
}
#: Operators that TVM converts and that are computed in float32 where operands have 16 bits: sums,
#: and functions.
IN_FLOAT32 = frozenset(
    """
    Acos Acosh Asin Asinh Atan Atanh Cos Cosh Einsum Erf Exp Gelu GridSample
    HardSigmoid HardSwish Hardmax
    LRN Log LogSoftmax Mean Mish Reciprocal Selu Sigmoid Sin Sinh
    SkipLayerNormalization Softmax Softsign Sqrt Sum Tan Tanh
    """.split()
)
#: Operators that have a conversion of ours.
CONVERTED = frozenset({*_OWN, *_REFUSED, *resizing.OPERATORS, *rules.GATES})
