"""What a call of a GPU program does: kernel launches in a fixed order, as data.

A plan is read off TVM's host function (`felix.measure.cuda.launches`) or written by a template
(`felix.templates`). The run worker plays it through the CUDA driver, so neither TVM's host code
nor the template is needed where it runs.

This file imports nothing of Felix: an artifact has a copy of it beside its `run.py`.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any

Extents = tuple[int, int, int]


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
        box: elements of each dimension that one copy moves; 256 at most.
        swizzle_bytes: 0, 32, 64 or 128; the box's first dimension has at most as many bytes.
        offset_bytes: where the first element lies in the tensor; a multiple of 16.
    """

    tensor: int
    dtype: str
    extents: tuple[int, ...]
    strides_bytes: tuple[int, ...]
    box: tuple[int, ...]
    swizzle_bytes: int = 0
    offset_bytes: int = 0


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
        tuple(arg if isinstance(arg, int) else _tensor_map(arg) for arg in fields["args"]),
        (x, y, z),
    )


def _tensor_map(fields: dict[str, Any]) -> TensorMap:
    lists = ("extents", "strides_bytes", "box")
    values: dict[str, Any] = {k: tuple(v) if k in lists else v for k, v in fields.items()}
    return TensorMap(**values)
