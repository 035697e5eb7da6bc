"""What a variant is: a name, integer parameters, and schedule primitives."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Sequence

import tvm
from tvm import tirx
from tvm.s_tir.schedule import SBlockRV

from felix import errors
from felix.tir import validate

_LOGGER = logging.getLogger(__name__)

#: What a rule makes of one block of a schedule, which it may change.
Rule = Callable[[tvm.s_tir.Schedule, SBlockRV], Sequence[tvm.s_tir.Schedule]]


@dataclasses.dataclass(frozen=True, slots=True)
class Variant:
    """Which program a sketch schedules.

    Attributes:
        parameters: (name, value), in a fixed order.
        replaces_stock: whether the task's own program is so much worse that one of its sketches
            is enough to search.
        is_replaced: whether another variant is so much better that this one is not searched.
    """

    name: str
    parameters: tuple[tuple[str, int], ...] = ()
    replaces_stock: bool = dataclasses.field(default=False, compare=False)
    is_replaced: bool = dataclasses.field(default=False, compare=False)

    def then(self, other: Variant) -> Variant:
        """This variant of the program, and the other of what it made."""
        name, parameters = f"{self.name}+{other.name}", (*self.parameters, *other.parameters)
        return Variant(name, parameters, self.replaces_stock, other.is_replaced)

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
        apply: changes a schedule, if anything is to change before MetaSchedule's rules; TVM raises
            where the program has no such variant.
        before_finishing: a rule of its own, for blocks that MetaSchedule's have placed.
        only: name of the one block that this rule is applied to; None for all.
        accepts: whether what the rules made of the program is the variant.
        is_at_root: blocks that it adds stay outside of the loops of others.
        mod: what is scheduled, where it is another program than the task's module.
        without: rules of MetaSchedule, by name, that are not applied to `only` and added blocks.
    """

    variant: Variant
    apply: Callable[[tvm.s_tir.Schedule], None] = lambda schedule: None
    before_finishing: Rule | None = None
    only: str | None = None
    accepts: Callable[[tvm.s_tir.Schedule], bool] = lambda schedule: True
    is_at_root: bool = False
    mod: tvm.IRModule | None = None
    without: tuple[str, ...] = ()

    def then(self, other: Prefix) -> Prefix:
        """This variant, and another of what it made."""

        def apply(schedule: tvm.s_tir.Schedule) -> None:
            self.apply(schedule)
            other.apply(schedule)

        variant = self.variant.then(other.variant)
        return dataclasses.replace(other, variant=variant, apply=apply, mod=self.mod)

    def replaced(self) -> Prefix:
        """The same, not searched because another variant is so much better."""
        variant = dataclasses.replace(self.variant, is_replaced=True)
        return dataclasses.replace(self, variant=variant)


def remade(variant: Variant, func: tirx.PrimFunc) -> list[Prefix]:
    """The variant that is a function made anew; none where that is not proved."""
    try:
        checked = validate.normalise(func)
    except errors.WorkloadError as error:
        _LOGGER.debug("%s is refused: %s", variant, error)
        return []
    return [Prefix(variant, mod=tvm.IRModule({"main": checked}))]
