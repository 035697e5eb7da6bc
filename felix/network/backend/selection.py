"""What the groups of a part run by what is known: nothing is tuned or timed here.

A group that was not compared runs what took least alone, PyTorch's operators where that is not
known, and TVM's default schedule where it has none.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from felix.database import store
from felix.database.outcome import KnownResult
from felix.network import groups
from felix.network.backend import partition
from felix.network.contenders import alone, contest, shipping
from felix.network.contenders.shipping import Contender
from felix.task import Task
from felix.torch_calls.form import TorchForm


@dataclasses.dataclass(frozen=True, slots=True)
class Selection:
    """What groups run, and the tasks with forms of which something is not known."""

    shipped: Sequence[shipping.Shipped]
    unknown: Sequence[tuple[Task, TorchForm | None]]

    @property
    def reason_for_pytorch(self) -> str | None:
        """Why no program of these groups is worth building; None if one is."""
        tasks = groups.tasks([each.group for each in self.shipped])
        if not tasks:
            return "it has no program that could be tuned"
        if not any(each.outcome is not None or each.latencies_us for each in self.shipped):
            return f"nothing is known of its {len(tasks)} tasks"
        if any(
            each.contender is not Contender.PYTORCH and each.latencies_us for each in self.shipped
        ):
            return None
        return "PyTorch's operators are the fastest of each group that is known"


def select(
    program: partition.PartProgram, known: store.Store, *, allow_tf32: bool = False
) -> Selection:
    """Look up what is known of each group.

    Args:
        allow_tf32: products of float32 may be computed in TF32.

    Raises:
        RecordError: the known results cannot be used.
    """
    every = groups.of(program.lowered, program.target, allow_tf32=allow_tf32)
    contenders = contest.Contest(program, known, alone.known_us(every, known))
    shipped: list[shipping.Shipped] = []
    unknown: list[tuple[Task, TorchForm | None]] = []
    for group in every:
        outcome = None if group.task is None else known.find(group.task)
        compared = contenders.known(group, outcome)
        if group.task is not None and (outcome is None or compared is None):
            unknown.append((group.task, None if isinstance(group.form, str) else group.form))
        shipped.append(_shipped(group, outcome, compared or contenders.alone(group)))
    return Selection(shipped, unknown)


def _shipped(
    group: groups.Group, outcome: KnownResult | None, compared: shipping.Compared | None
) -> shipping.Shipped:
    if compared is None:
        compared = shipping.Compared(latencies_us={}, without_pytorch="it is not compared yet")
    chosen = shipping.choose(group, outcome, compared, is_known=outcome is not None)
    if chosen.latencies_us or isinstance(group.form, str):
        return chosen
    reason = "nothing was measured: PyTorch's operators"
    return dataclasses.replace(chosen, contender=Contender.PYTORCH, reason=reason)
