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

    def then(self, other: Variant) -> Variant:
        """This variant of the program, and the other of what it made."""
        return Variant(f"{self.name}+{other.name}", (*self.parameters, *other.parameters))

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
    """

    cores: int
    is_gpu: bool


@dataclasses.dataclass(frozen=True, slots=True)
class Prefix:
    """A variant, and how a schedule of the task's module becomes it.

    Attributes:
        apply: changes a schedule; TVM raises where the program has no such variant.
        second: name of the reduction of partial results; None if there is none.
        mod: what is scheduled, where it is another program than the task's module.
        can_split: whether the reduction of what it makes may be split in turn.
    """

    variant: Variant
    apply: Callable[[tvm.s_tir.Schedule], None]
    second: str | None = None
    mod: tvm.IRModule | None = None
    can_split: bool = True

    def then(self, other: Prefix) -> Prefix:
        """This variant, and another of what it made."""

        def apply(schedule: tvm.s_tir.Schedule) -> None:
            self.apply(schedule)
            other.apply(schedule)

        return Prefix(self.variant.then(other.variant), apply, other.second, self.mod)


def nothing(schedule: tvm.s_tir.Schedule) -> None:
    """What is left to primitives of a program that was made anew."""
