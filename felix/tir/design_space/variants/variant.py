"""What a variant is: a name, integer parameters, and schedule primitives."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import tvm


@dataclasses.dataclass(frozen=True, slots=True)
class Variant:
    """Which program a sketch schedules.

    Attributes:
        parameters: (name, value), in a fixed order.
    """

    name: str
    parameters: tuple[tuple[str, int], ...] = ()

    def __str__(self) -> str:
        values = ", ".join(f"{name}={value}" for name, value in self.parameters)
        return f"{self.name}({values})" if values else self.name


#: The task's program as it is.
STOCK = Variant("stock")


@dataclasses.dataclass(frozen=True, slots=True)
class Machine:
    """What parameters of variants are chosen by.

    Attributes:
        cores: CPU cores or GPU multiprocessors.
        is_gpu: programs are launched as grids of thread blocks.
        vector_lanes: float32 values of a vector instruction.
    """

    cores: int
    is_gpu: bool
    vector_lanes: int


@dataclasses.dataclass(frozen=True, slots=True)
class Prefix:
    """A variant, and how a schedule of the task's module becomes it.

    Attributes:
        apply: changes a schedule; TVM raises where the program has no such variant.
        second: name of the reduction of partial results; None if there is none.
        is_at_root: blocks that it adds stay outside of the loops of others.
    """

    variant: Variant
    apply: Callable[[tvm.s_tir.Schedule], None]
    second: str | None = None
    is_at_root: bool = False
