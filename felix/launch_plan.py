"""What a call of a GPU program does: kernel launches in a fixed order, as data.

A plan is read off TVM's host function (`felix.builder.cuda.launches`) or written by a
template (`felix.templates`). The run worker plays it through the CUDA driver, so neither TVM's
host code nor the template is needed where it runs.

This file imports nothing of Felix: an artifact has a copy of it beside its `run.py`.
"""

from __future__ import annotations

import dataclasses
import json
import re
from typing import Any

Extents = tuple[int, int, int]

#: What an im2col tensor map of so many dimensions can hold: the range of a corner, and the
#: largest offset that a copy can add to a place.
CORNERS = {3: (-(2**15), 2**15 - 1), 4: (-(2**7), 2**7 - 1), 5: (-(2**4), 2**4 - 1)}
LARGEST_OFFSET = {3: 2**16 - 1, 4: 2**8 - 1, 5: 2**5 - 1}
#: Places from one pixel to the next, elements of a pixel and pixels of a copy are at most these.
LARGEST_STRIDE, MOST_CHANNELS, MOST_PIXELS = 8, 256, 1024
_ALIGNMENT, _LARGEST_STRIDE_BYTES = 16, 2**40


@dataclasses.dataclass(frozen=True, slots=True)
class Im2col:
    """How the copies of a tensor map walk over pixels, for convolutions.

    A copy begins at a place of each dimension and takes pixels, `strides` apart, of the last
    spatial dimension within the bounding box, then goes to the box's begin and a stride on in the
    next dimension, in the end to the next image. It reads each pixel moved by the copy's offsets.
    The box goes from place `lower` to place extent - 1 + `upper` of each dimension, inclusive.

    Attributes:
        lower, upper, strides: of the spatial dimensions, which are all but the first and the last
            of the tensor; innermost first.
    """

    lower: tuple[int, ...]
    upper: tuple[int, ...]
    strides: tuple[int, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class TensorMap:
    """A descriptor of a tensor for the copy engine (TMA), a kernel argument of 128 bytes by value.

    Dimensions are innermost first; there are one to five. What a box has outside the tensor reads
    as zeros and is not written.

    Attributes:
        tensor: which tensor, numbered as the arguments of a `Launch`.
        dtype: of its elements, TVM's name.
        extents: elements of each dimension.
        strides_bytes: of every dimension but the first, whose elements are adjacent; multiples of
            16.
        box: elements of each dimension that one copy moves; 256 at most. With `im2col` these are
            two: elements of a pixel, 256 at most, and pixels, 1024 at most.
        swizzle_bytes: 0, 32, 64 or 128; the box's first dimension has at most as many bytes.
        offset_bytes: where the first element lies in the tensor; a multiple of 16.
        im2col: how a copy walks over pixels; None where it is a box.

    Raises:
        ValueError: no tensor map can hold its `im2col`.
    """

    tensor: int
    dtype: str
    extents: tuple[int, ...]
    strides_bytes: tuple[int, ...]
    box: tuple[int, ...]
    swizzle_bytes: int = 0
    offset_bytes: int = 0
    im2col: Im2col | None = None

    def __post_init__(self) -> None:
        if self.im2col is not None:
            refused = _why_refused(self, self.im2col)
            if refused:
                raise ValueError(f"no im2col tensor map of these: {refused}")


def _why_refused(tensor_map: TensorMap, im2col: Im2col) -> str | None:
    """Which limit of im2col tensor maps is not kept (driver API, "Tensor Map Object")."""
    rank = len(tensor_map.extents)
    if rank not in CORNERS:
        return f"{rank} dimensions, not 3, 4 or 5"
    corners = (*im2col.lower, *im2col.upper)
    if len(im2col.lower) != rank - 2 or len(corners) != 2 * len(im2col.strides):
        return f"corners and strides are not of {rank - 2} spatial dimensions"
    least, most = CORNERS[rank]
    if not all(least <= corner <= most for corner in corners):
        return f"corners {corners} are not between {least} and {most}"
    if not all(1 <= stride <= LARGEST_STRIDE for stride in im2col.strides):
        return f"strides {im2col.strides} are not between 1 and {LARGEST_STRIDE}"
    sides = zip(tensor_map.extents[1:-1], im2col.lower, im2col.upper, strict=True)
    if any(extent + upper <= lower for extent, lower, upper in sides):
        return "the bounding box is empty"
    return _why_refused_bytes(tensor_map)


def _why_refused_bytes(tensor_map: TensorMap) -> str | None:
    channels, pixels, *more = tensor_map.box
    if more or not 1 <= channels <= MOST_CHANNELS or not 1 <= pixels <= MOST_PIXELS:
        return f"{tensor_map.box} are not up to {MOST_CHANNELS} elements of {MOST_PIXELS} pixels"
    size = re.search(r"\d+", tensor_map.dtype)
    row_bytes = channels * int(size[0]) // 8 if size else 0
    if row_bytes % _ALIGNMENT or row_bytes > (tensor_map.swizzle_bytes or row_bytes):
        return f"a pixel of {row_bytes} bytes with a swizzle of {tensor_map.swizzle_bytes}"
    for number in (*tensor_map.strides_bytes, tensor_map.offset_bytes):
        if number % _ALIGNMENT or not 0 <= number < _LARGEST_STRIDE_BYTES:
            return f"{number} bytes are no multiple of {_ALIGNMENT} below 2**40"
    return None


#: A kernel's argument: the address of a tensor, or a tensor map.
Argument = int | TensorMap


@dataclasses.dataclass(frozen=True, slots=True)
class Launch:
    """One kernel launch: `extents` are grid x, y, z and block x, y, z.

    `args` are tensors, or tensor maps of them: 0 <= i < number of parameters names a parameter,
    the following numbers the workspaces of the plan. Blocks of a `cluster` run together; its
    extents divide the grid's.
    """

    kernel: str
    extents: tuple[int, int, int, int, int, int]
    shared_bytes: int
    args: tuple[Argument, ...]
    cluster: Extents = (1, 1, 1)


@dataclasses.dataclass(frozen=True, slots=True)
class LaunchPlan:
    """What a call of the program does: `launches` in order, with `workspaces` in bytes.

    A workspace holds anything before a call, and nothing stays in it until the next: what has to
    be zero is zeroed by a kernel of the plan.
    """

    n_params: int
    workspaces: tuple[int, ...]
    launches: tuple[Launch, ...]

    def to_json(self) -> str:
        """One line."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> LaunchPlan:
        """The plan that `to_json` wrote."""
        fields = json.loads(text)
        launches = tuple(_launch(launch) for launch in fields["launches"])
        return cls(fields["n_params"], tuple(fields["workspaces"]), launches)


def _launch(fields: dict[str, Any]) -> Launch:
    x, y, z = fields["cluster"]
    return Launch(
        fields["kernel"],
        tuple(fields["extents"]),
        fields["shared_bytes"],
        tuple(arg if isinstance(arg, int) else tensor_map_of(arg) for arg in fields["args"]),
        (x, y, z),
    )


def tensor_map_of(fields: dict[str, Any]) -> TensorMap:
    """The tensor map whose `dataclasses.asdict` these are, read from JSON."""
    lists = ("extents", "strides_bytes", "box")
    values: dict[str, Any] = {k: tuple(v) if k in lists else v for k, v in fields.items()}
    if values.get("im2col") is not None:
        values["im2col"] = Im2col(**{k: tuple(v) for k, v in values["im2col"].items()})
    return TensorMap(**values)
