"""What each group of a network runs: the fastest that was measured.

Contenders are Felix's best program, the program as TVM schedules it by default, and PyTorch's
own operators. All are timed on this machine with cold caches; where PyTorch has operators for a
group, side by side (`contest`), and those whose results are wrong are left out. Within
`results.TIE` of each other they are equally fast, and Felix's ships.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping
from typing import Any

from felix.database.outcome import KnownResult
from felix.network import groups
from felix.torch_calls.form import TorchForm
from felix.tuning import results


class Contender(enum.StrEnum):
    """What may run a group."""

    FELIX = "felix"
    TVM = "tvm"
    PYTORCH = "pytorch"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """Contenders of a group that were timed side by side.

    `without_pytorch` is why PyTorch's operators are none of them; None if they are. `wrong` says
    of contenders that must not ship what is wrong with them.
    """

    latencies_us: Mapping[Contender, float]
    without_pytorch: str | None
    wrong: Mapping[Contender, str] = dataclasses.field(default_factory=dict)

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Compared:
        """What is stored of a comparison (`dataclasses.asdict`)."""
        return cls(
            latencies_us={Contender(name): us for name, us in stored["latencies_us"].items()},
            without_pytorch=stored.get("without_pytorch"),
            wrong={Contender(name): reason for name, reason in stored["wrong"].items()},
        )


#: What is known of a group that there was no time to compare.
LATE = Compared(latencies_us={}, without_pytorch="there was no time to compare it")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Shipped:
    """What a group runs, and why.

    Attributes:
        group: the group.
        contender: whose program it is.
        latencies_us: of each contender that was measured.
        reason: why this one ships, in a line.
        outcome: what is known of the group's task; None if it has none or was never tuned.
        is_known: whether the outcome is from an earlier run.
        without_pytorch: why PyTorch's operators are no contender; None if they are one.
        wrong: contenders that must not ship, with what is wrong with them.
    """

    group: groups.Group
    contender: Contender
    latencies_us: Mapping[Contender, float]
    reason: str
    outcome: KnownResult | None
    is_known: bool
    without_pytorch: str | None
    wrong: Mapping[Contender, str] = dataclasses.field(default_factory=dict)

    @property
    def latency_us(self) -> float | None:
        """Latency of one call of what ships; None if it was not measured."""
        return self.latencies_us.get(self.contender)

    @property
    def untuned(self) -> str | None:
        """Why Felix has no program for the group; None if it has one."""
        if self.group.reason is not None:
            return self.group.reason
        if self.outcome is None:
            return "it was not its turn before the time or the trials were used up"
        return self.outcome.failure


def choose(
    group: groups.Group, outcome: KnownResult | None, compared: Compared, is_known: bool
) -> Shipped:
    """The fastest contender of a group; TVM's program where nothing was measured.

    What was timed side by side counts, not what tuning measured before. A contender that is
    wrong does not ship. Where there was no time to compare, PyTorch's operators ship.
    """
    if compared is LATE and isinstance(group.form, TorchForm):
        return Shipped(
            group=group,
            contender=Contender.PYTORCH,
            latencies_us=_latencies_us(outcome),
            reason="there was no time to compare it: PyTorch's operators",
            outcome=outcome,
            is_known=is_known,
            without_pytorch=None,
        )
    known = {**_latencies_us(outcome), **compared.latencies_us}
    latencies_us = {name: us for name, us in known.items() if name not in compared.wrong}
    contender = fastest(latencies_us)
    shipped = Shipped(
        group=group,
        contender=contender,
        latencies_us=latencies_us,
        reason="",
        outcome=outcome,
        is_known=is_known,
        without_pytorch=compared.without_pytorch,
        wrong=compared.wrong,
    )
    return dataclasses.replace(shipped, reason=_reason(shipped))


def _latencies_us(outcome: KnownResult | None) -> dict[Contender, float]:
    if outcome is None:
        return {}
    measured = {Contender.FELIX: outcome.tuned_us, Contender.TVM: outcome.default_us}
    return {name: value for name, value in measured.items() if value is not None}


def fastest(latencies_us: Mapping[Contender, float]) -> Contender:
    """The fastest contender, Felix's if it is among the fastest; TVM's if nothing was measured."""
    if not latencies_us:
        return Contender.TVM
    limit_us = (1.0 + results.TIE) * min(latencies_us.values())
    return next(name for name in Contender if latencies_us.get(name, limit_us + 1) <= limit_us)


def _reason(shipped: Shipped) -> str:
    if not shipped.latencies_us:
        return "nothing was measured: TVM's default schedule"
    best_us = shipped.latencies_us[shipped.contender]
    others = [
        f"{name} takes {value / best_us:.2f} times as long"
        for name, value in shipped.latencies_us.items()
        if name is not shipped.contender
    ]
    return "; ".join([*others, *shipped.wrong.values()]) or "nothing else was measured"
