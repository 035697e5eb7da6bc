"""Whether something works in a confined process, which is found out by trying it.

    outcome = trial.decide(attempt)

A failure alone says nothing: a driver may be missing, a device full. So what failed in a confined
process is tried in one that is not, and, if it works there, in a confined one once more.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable


class Verdict(enum.Enum):
    """What attempts in confined and in other processes say together."""

    #: It works in a confined process.
    CONFINED = "confined"
    #: It works only in a process that is not confined.
    IN_THE_WAY = "in the way"
    #: It works in neither.
    BROKEN = "broken"


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """A verdict, and the error behind it, None where it works confined.

    `IN_THE_WAY` comes with the error of the confined process, `BROKEN` with that of the other.
    """

    verdict: Verdict
    reason: str | None


def decide(attempt: Callable[[bool], str | None]) -> Outcome:
    """Try something until it is clear whether confinement is in its way.

    Args:
        attempt: tries it in a fresh process, a confined one if its argument says so; returns what
            failed, or None. An attempt that worked may leave its process for use, if it is the
            last one.
    """
    refused = attempt(True)
    if refused is None:
        return Outcome(Verdict.CONFINED, None)
    failed = attempt(False)
    if failed is not None:
        return Outcome(Verdict.BROKEN, failed)
    refused = attempt(True)  # what was there for a moment only is not confinement's doing
    if refused is None:
        return Outcome(Verdict.CONFINED, None)
    return Outcome(Verdict.IN_THE_WAY, refused)
