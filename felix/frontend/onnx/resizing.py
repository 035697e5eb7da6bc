"""ONNX's Resize and Upsample where TVM's conversion computes other numbers.

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
from felix.frontend.onnx import constants

OPERATORS = frozenset({"Resize", "Upsample"})
#: Axes that TVM resizes begin behind the batch and the channels of tensors of these ranks.
_TVM_FIRST_AXIS, _TVM_RANKS = 2, (3, 4, 5)
_WIDE = {"float16": "float32", "bfloat16": "float32", "float32": "float32", "float64": "float64"}
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


@dataclass(frozen=True, slots=True)
class _Method:
    """How values between elements are computed, in ONNX's words."""

    mode: str
    coordinates: str
    rounding: str
    cubic: float
    excludes_outside: bool


def convert(importer: Any, operator: str, inputs: Any, attributes: Mapping[str, Any]) -> Any:
    """The resized tensor; None where TVM's conversion computes the same.

    Raises:
        WorkloadError: attributes that are not supported.
    """
    x, is_upsample = inputs[0], operator == "Upsample"
    method = _method(attributes, is_upsample)
    axes = _axes(importer, x, inputs, attributes, is_upsample)
    if axes is None or (not is_upsample and _is_tvms(x, axes, method, inputs, attributes)):
        return None
    if method.mode not in ("nearest", "linear", "cubic"):
        raise errors.WorkloadError("the mode is unknown")
    is_smooth = method.mode != "nearest"
    if attributes.get("antialias") and is_smooth and any(axis.scale < 1 for axis in axes):
        raise errors.WorkloadError("antialias is not supported")
    dtype = str(x.ty.dtype)
    if is_smooth:
        if dtype not in _WIDE:
            raise errors.WorkloadError("only floats can be interpolated")
        x = _cast(importer.bb, x, _WIDE[dtype])
    for axis in axes:
        if (axis.extent, axis.scale) != (axis.size, 1.0):
            x = _along(importer.bb, x, axis, method)
    return _cast(importer.bb, x, dtype)


def _method(attributes: Mapping[str, Any], is_upsample: bool) -> _Method:
    def text(name: str, default: str) -> str:
        value = attributes.get(name, default)
        return value.decode() if isinstance(value, bytes) else str(value)

    coordinates, rounding = "half_pixel", "round_prefer_floor"
    if is_upsample:
        coordinates, rounding = "asymmetric", "floor"
    return _Method(
        mode=text("mode", "nearest").removeprefix("bi"),
        coordinates=text("coordinate_transformation_mode", coordinates),
        rounding=text("nearest_mode", rounding),
        cubic=float(attributes.get("cubic_coeff_a", -0.75)),
        excludes_outside=bool(attributes.get("exclude_outside", 0)),
    )


def _axes(
    importer: Any, x: Any, inputs: Any, attributes: Mapping[str, Any], is_upsample: bool
) -> list[_Axis] | None:
    """The axes that are named, with their scales; None where these are not known."""
    tables = [importer._nodes, importer._params]
    extents = [int(extent) for extent in x.ty.shape]
    named = attributes.get("axes") or range(len(extents))
    numbers = [int(number) % len(extents) for number in named]
    chosen = [extents[number] for number in numbers]
    if is_upsample:
        scales, sizes = constants.array(inputs[1], tables), None
        if scales is None:
            scales = attributes.get("scales")
    else:
        scales = constants.array(inputs[2], tables)
        sizes = None if inputs[3] is None else constants.known(inputs[3], tables)
    if scales is None or not len(scales):
        if sizes is None or not len(sizes):
            return None
        scales, sizes = _by_policy(sizes, chosen, attributes)
    else:
        # As ONNX Runtime and PyTorch: 1.3 * 10 is 13, though the float32 is below 1.3.
        sizes = [int(np.float32(s) * np.float32(e)) for s, e in zip(scales, chosen, strict=True)]
    if min(sizes, default=1) < 1:
        raise errors.WorkloadError("nothing is left of an axis")
    return [_Axis(*each) for each in zip(numbers, chosen, sizes, map(float, scales), strict=True)]


def _by_policy(
    sizes: Any, extents: Sequence[int], attributes: Mapping[str, Any]
) -> tuple[list[float], list[int]]:
    """Scales and extents of the result where extents are given."""
    policy = attributes.get("keep_aspect_ratio_policy", b"stretch")
    policy = policy.decode() if isinstance(policy, bytes) else policy
    ratios = [int(size) / extent for size, extent in zip(sizes, extents, strict=True)]
    if policy == "stretch":
        return ratios, [int(size) for size in sizes]
    if policy not in ("not_larger", "not_smaller"):
        raise errors.WorkloadError("the policy is unknown")
    scale = min(ratios) if policy == "not_larger" else max(ratios)
    return [scale] * len(ratios), [int(scale * extent + 0.5) for extent in extents]


def _is_tvms(
    x: Any, axes: Sequence[_Axis], method: _Method, inputs: Any, attributes: Mapping[str, Any]
) -> bool:
    """Whether TVM's conversion computes what is asked for.

    Raises:
        WorkloadError: it does not, nor do the conversions here.
    """
    is_plain = all(
        axis.size == axis.extent
        if axis.number < _TVM_FIRST_AXIS
        else axis.scale * axis.extent == axis.size or inputs[2] is None
        for axis in axes
    )
    is_plain &= len(x.ty.shape) in _TVM_RANKS and not attributes.get("axes")
    policy = attributes.get("keep_aspect_ratio_policy", b"stretch")
    is_plain &= not attributes.get("antialias") and policy in (b"stretch", "stretch")
    is_plain &= inputs[2] is None or inputs[3] is None
    is_plain &= method.coordinates != "half_pixel_symmetric"
    if method.coordinates == "tf_crop_and_resize" and not is_plain:
        raise errors.WorkloadError("this way to crop and resize is not supported")
    return is_plain


def _coordinates(axis: _Axis, method: str) -> Any:
    """Where the result's elements lie among those of the tensor, in float32."""
    x, scale, half = np.arange(axis.size, dtype="float32"), np.float32(axis.scale), np.float32(0.5)
    if method == "asymmetric":
        return x / scale
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
        return _inside(_ROUNDINGS[method.rounding](x)[None], axis), None
    low = np.floor(x)
    r = (x - low).astype("float64")
    if method.mode == "linear":
        return _inside(np.stack([low, low + 1]), axis), np.stack([1 - r, r])
    a = method.cubic
    weights = np.stack([_far(1 + r, a), _near(r, a), _near(1 - r, a), _far(2 - r, a)])
    places = np.stack([low - 1, low, low + 1, low + 2])
    if method.excludes_outside:
        weights *= (places >= 0) & (places < axis.extent)
        weights /= weights.sum(axis=0)
    return _inside(places, axis), weights


def _near(distance: Any, a: float) -> Any:
    """A cubic's weight of an element up to 1 away."""
    return ((a + 2) * distance - (a + 3)) * distance**2 + 1


def _far(distance: Any, a: float) -> Any:
    """A cubic's weight of an element 1 to 2 away."""
    return ((a * distance - 5 * a) * distance + 8 * a) * distance - 4 * a


def _inside(places: Any, axis: _Axis) -> Any:
    return np.clip(places, 0, axis.extent - 1).astype("int32")


def _along(bb: Any, x: Any, axis: _Axis, method: _Method) -> Any:
    """A tensor resized along one axis."""
    places, weights = _neighbours(axis, method)
    dtype, shape = str(x.ty.dtype), [-1] + [1] * (len(x.ty.shape) - axis.number - 1)
    total = None
    for neighbour, place in enumerate(places):
        part = bb.emit(relax.op.take(x, relax.const(place, "int32"), axis=axis.number))
        if weights is not None:
            weight = weights[neighbour].astype(dtype).reshape(shape)
            part = bb.emit(relax.op.multiply(part, relax.const(weight, dtype)))
        total = part if total is None else bb.emit(relax.op.add(total, part))
    return total


def _cast(bb: Any, x: Any, dtype: str) -> Any:
    return x if str(x.ty.dtype) == dtype else bb.emit(relax.op.astype(x, dtype))
