"""ONNX's Resize and Upsample where TVM's conversion computes other numbers, and AffineGrid.

TVM turns scales into extents and takes the ratios of extents for the scales. These differ where a
scale times an extent is no whole number, and with them the coordinates. It also knows neither
`axes` nor policies, and resizes no batch and no channels. Of Upsample it knows one form.

Here a value is a weighted sum of its neighbours along one axis after the other. Their places and
weights are constants, computed in float32 as PyTorch and ONNX Runtime do it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relax

from felix import errors
from felix.frontend.layers import dtype_of, shape_of
from felix.frontend.onnx.node import Node
from felix.tir.rounding import accumulator

OPERATORS = frozenset({"Resize", "Upsample"})
#: Axes that TVM resizes begin behind the batch and the channels of tensors of these ranks.
_TVM_FIRST_AXIS, _TVM_RANKS = 2, (3, 4, 5)
_CROP = "tf_crop_and_resize"
#: How operators before opset 11 round one: up where the axis shrinks.
_OUTWARD = "outward"
#: ONNX's ways to round a coordinate to a place.
_ROUNDINGS: Mapping[str, Callable[[Any], Any]] = {
    "floor": np.floor,
    "ceil": np.ceil,
    "round_prefer_floor": lambda x: np.ceil(x - np.float32(0.5)),
    "round_prefer_ceil": lambda x: np.floor(x + np.float32(0.5)),
}


@dataclass(frozen=True, slots=True)
class _Axis:
    """An axis of `extent` elements that becomes one of `size`, by a scale."""

    number: int
    extent: int
    size: int
    scale: float
    #: begin and end of what is resized, of the extent, where a part is
    part: tuple[float, float]


@dataclass(frozen=True, slots=True)
class _Method:
    """How values between elements are computed, in ONNX's words."""

    mode: str
    coordinates: str
    rounding: str
    cubic: float
    excludes_outside: bool
    is_smoothed: bool
    outside: float


def convert(node: Node) -> Any:
    """The resized tensor; None where TVM's conversion computes the same.

    Raises:
        UnknownValue: scales, extents or the part to resize are not known.
        WorkloadError: attributes that are not supported.
    """
    x, is_upsample = node[0], node.operator == "Upsample"
    method = _method(node, is_upsample)
    axes = _axes(node, method, is_upsample)
    if not is_upsample and _is_tvms(node, axes, method):
        return None
    if method.mode not in ("nearest", "linear", "cubic"):
        raise errors.WorkloadError("the mode is unknown")
    if method.is_smoothed and method.mode == "nearest":
        raise errors.WorkloadError("its attribute 'antialias' is of the modes linear and cubic")
    if method.excludes_outside and method.mode != "cubic" and not method.is_smoothed:
        raise errors.WorkloadError(
            "its attribute 'exclude_outside' is of the mode cubic, or goes with 'antialias'"
        )
    dtype = dtype_of(x)
    if method.mode != "nearest":
        if "float" not in dtype:
            raise errors.WorkloadError("only floats can be interpolated")
        x = node.cast(x, accumulator(dtype))
    for axis in axes:
        if (axis.extent, axis.scale) != (axis.size, 1.0) or method.coordinates == _CROP:
            x = _along(node, x, axis, method)
    return node.cast(x, dtype)


def _method(node: Node, is_upsample: bool) -> _Method:
    coordinates, rounding = "half_pixel", "round_prefer_floor"
    if is_upsample or node.opset < 11:  # as later versions call it
        coordinates, rounding = "asymmetric", _OUTWARD
    return _Method(
        mode=node.get("mode", "nearest").removeprefix("bi"),
        coordinates=node.get("coordinate_transformation_mode", coordinates),
        rounding=node.get("nearest_mode", rounding),
        cubic=float(node.get("cubic_coeff_a", -0.75)),
        excludes_outside=bool(node.get("exclude_outside", 0)),
        is_smoothed=bool(node.get("antialias", 0)),
        outside=float(node.get("extrapolation_value", 0.0)),
    )


def _axes(node: Node, method: _Method, is_upsample: bool) -> list[_Axis]:
    """The axes that are named, with their scales."""
    extents = shape_of(node[0])
    named = node.get("axes") or range(len(extents))
    numbers = [int(number) % len(extents) for number in named]
    chosen = [extents[number] for number in numbers]
    is_old = is_upsample or node.opset < 11
    scales = node.get("scales") if "scales" in node.attributes else node.value(1 if is_old else 2)
    if scales is None or not len(scales):
        sizes = None if is_old else node.integers(3)
        if not sizes:
            raise errors.WorkloadError("it has neither scales nor extents")
        scales, sizes = _by_policy(node, sizes, chosen)
    else:
        # As ONNX Runtime and PyTorch: 1.3 * 10 is 13, though the float32 is below 1.3.
        sizes = [int(np.float32(s) * np.float32(e)) for s, e in zip(scales, chosen, strict=True)]
    if min(sizes, default=1) < 1:
        raise errors.WorkloadError("nothing is left of an axis")
    parts = [(0.0, 1.0)] * len(chosen)
    if method.coordinates == _CROP:
        roi = node.value(1)
        if roi is None or roi.size != 2 * len(chosen):
            raise errors.WorkloadError("it has no part to resize, or one of other axes")
        parts = [(float(roi[i]), float(roi[i + len(chosen)])) for i in range(len(chosen))]
    elif not is_old:
        _ = node[1]  # a part to resize, which others do not read
    columns = (numbers, chosen, sizes, map(float, scales), parts)
    return [_Axis(*each) for each in zip(*columns, strict=True)]


def _by_policy(
    node: Node, sizes: Sequence[int], extents: Sequence[int]
) -> tuple[list[float], list[int]]:
    """Scales and extents of the result where extents are given."""
    policy = node.get("keep_aspect_ratio_policy", "stretch")
    ratios = [int(size) / extent for size, extent in zip(sizes, extents, strict=True)]
    if policy == "stretch":
        return ratios, [int(size) for size in sizes]
    if policy not in ("not_larger", "not_smaller"):
        raise errors.WorkloadError("the policy is unknown")
    scale = min(ratios) if policy == "not_larger" else max(ratios)
    return [scale] * len(ratios), [int(scale * extent + 0.5) for extent in extents]


def _is_tvms(node: Node, axes: Sequence[_Axis], method: _Method) -> bool:
    """Whether TVM's conversion computes what is asked for."""
    is_scaled = node[2] is not None
    is_plain = all(
        axis.size == axis.extent
        if axis.number < _TVM_FIRST_AXIS
        else axis.scale * axis.extent == axis.size or not is_scaled
        for axis in axes
    )
    is_plain &= node.opset >= 11 and len(shape_of(node[0])) in _TVM_RANKS
    is_plain &= not node.get("axes") and not method.is_smoothed
    # between two elements TVM takes the later one
    is_plain &= method.mode != "nearest" or all(axis.scale == int(axis.scale) for axis in axes)
    is_plain &= node.get("keep_aspect_ratio_policy", "stretch") == "stretch"
    is_plain &= not is_scaled or node[3] is None
    return is_plain and method.coordinates not in ("half_pixel_symmetric", _CROP)


def _coordinates(axis: _Axis, method: str) -> Any:
    """Where the result's elements lie among those of the tensor, in float32."""
    x, scale, half = np.arange(axis.size, dtype="float32"), np.float32(axis.scale), np.float32(0.5)
    if method == "asymmetric":
        return x / scale
    if method == _CROP:
        begin, end = axis.part
        last = axis.extent - 1
        if axis.size == 1:
            return np.array([0.5 * (begin + end) * last], "float32")
        return np.float32(begin * last) + x * np.float32((end - begin) * last / (axis.size - 1))
    if method == "align_corners":
        return x * np.float32((axis.extent - 1) / max(1, axis.size - 1))
    if method == "tf_half_pixel_for_nn":
        return (x + half) / scale
    if method == "pytorch_half_pixel" and axis.size == 1:
        return x
    middle = (x + half) / scale - half
    if method == "half_pixel_symmetric":
        return middle + np.float32(axis.extent / 2 * (1 - axis.size / (axis.scale * axis.extent)))
    if method not in ("half_pixel", "pytorch_half_pixel"):
        raise errors.WorkloadError("the way to compute coordinates is not supported")
    return middle


def _neighbours(axis: _Axis, method: _Method) -> tuple[Any, Any]:
    """Places [neighbours, size] and their weights; None for weights of 1."""
    x = _coordinates(axis, method.coordinates)
    if method.mode == "nearest":
        outward = np.ceil if axis.scale < 1 else np.floor
        rounded = outward(x) if method.rounding == _OUTWARD else _ROUNDINGS[method.rounding](x)
        return _inside(rounded[None], axis), None
    low = np.floor(x)
    r = (x - low).astype("float64")
    scale = min(1.0, axis.scale) if method.is_smoothed else 1.0
    first = int(np.floor(-(1 if method.mode == "linear" else 2) / scale)) + 1
    steps = np.arange(first, 2 - first)[:, None]
    distances = np.abs(steps - r) * scale
    weights = _cubic(distances, method.cubic)
    if method.mode == "linear":
        weights = np.clip(1 - distances, 0, 1)
    places = low + steps
    if method.excludes_outside:
        weights *= (places >= 0) & (places < axis.extent)
    if method.excludes_outside or method.is_smoothed:
        weights /= weights.sum(axis=0)
    return _inside(places, axis), weights


def _cubic(distances: Any, a: float) -> Any:
    """A cubic's weights of elements so far away."""
    near = ((a + 2) * distances - (a + 3)) * distances**2 + 1
    far = ((a * distances - 5 * a) * distances + 8 * a) * distances - 4 * a
    return np.where(distances <= 1, near, np.where(distances < 2, far, 0))


def _inside(places: Any, axis: _Axis) -> Any:
    return np.clip(places, 0, axis.extent - 1).astype("int32")


def _along(node: Node, x: Any, axis: _Axis, method: _Method) -> Any:
    """A tensor resized along one axis."""
    places, weights = _neighbours(axis, method)
    dtype, shape = dtype_of(x), [-1] + [1] * (len(shape_of(x)) - axis.number - 1)
    total = None
    for neighbour, place in enumerate(places):
        part = node.emit(relax.op.take(x, relax.const(place, "int32"), axis=axis.number))
        if weights is not None:
            weight = weights[neighbour].astype(dtype).reshape(shape)
            part = node.emit(relax.op.multiply(part, relax.const(weight, dtype)))
        total = part if total is None else node.emit(relax.op.add(total, part))
    if method.coordinates == _CROP:
        x = _coordinates(axis, method.coordinates)
        is_outside = relax.const(((x < 0) | (x > axis.extent - 1)).reshape(shape), "bool")
        value = relax.const(method.outside, dtype)
        total = node.emit(relax.op.where(is_outside, value, total))
    return total


def affine_grid(node: Node) -> Any:
    """The map theta [n, d, d + 1] of the places of a tensor of the size [n, c, extents...].

    A place has its coordinates in the reverse order of the extents.
    """
    theta, size = node[0], node.integers(1)
    is_aligned = bool(node.get("align_corners", 0))
    if size is None or len(size) not in (4, 5):
        raise errors.WorkloadError("its size is not of four or five extents")
    extents, dtype = size[2:], dtype_of(theta)
    if is_aligned and 1 in extents:
        raise errors.WorkloadError("corners of an axis of one element cannot be aligned")
    axes = [_of_grid(extent, is_aligned) for extent in extents]
    grid = np.meshgrid(*axes, indexing="ij")[::-1]
    places = np.stack([*grid, np.ones(extents)], axis=-1).reshape(-1, len(extents) + 1)
    wide = accumulator(dtype)
    maps = node.emit(relax.op.permute_dims(node.cast(theta, wide), [0, 2, 1]))
    result = node.emit(relax.op.matmul(relax.const(places.astype(wide), wide), maps))
    shape = [size[0], *extents, len(extents)]
    return node.cast(node.emit(relax.op.reshape(result, shape)), dtype)


def _of_grid(extent: int, is_aligned: bool) -> np.ndarray:
    """Of the elements of an axis; -1 and 1 are its first and last one, or its ends."""
    if is_aligned:
        return np.linspace(-1, 1, extent)
    return (2 * np.arange(extent) + 1) / extent - 1
