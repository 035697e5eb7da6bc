"""How the seconds of a call are shared out: import, tuning, and the end.

The end is comparing with PyTorch, building, checking and timing. What it takes is estimated by the
number of groups; tuning has at least half of what is left after the import.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable

#: Seconds of comparing a group, and of building it.
_COMPARED_S = {"llvm": 0.1, "cuda": 0.05}
_BUILT_S = {"llvm": 0.05, "cuda": 0.2}
#: Of comparing an attention as a whole.
ATTENTION_S = 1.0
#: Of checking and timing the whole, at most; and their share of what is left.
_SETTLED_S, _SETTLED_SHARE = 4.0, 0.15
#: Sketches are made for the grouping in this share.
_GROUPED_SHARE = 0.25
#: Share of what is left after the import in which contenders are timed alone.
_TIMED_SHARE = 0.2
#: What lowering takes of the import's seconds.
_LOWERED = 0.5
#: Tuning for less than this finds nothing.
_LEAST_TUNING_S = 2.0


@dataclasses.dataclass(frozen=True, slots=True)
class Deadline:
    """When a call ends.

    Attributes:
        begun_s: when it was made, by `time.monotonic`.
        seconds: what it may take; None: what it takes.
    """

    begun_s: float
    seconds: float | None

    @property
    def left_s(self) -> float:
        """Seconds until it ends."""
        if self.seconds is None:
            return math.inf
        return self.seconds - (time.monotonic() - self.begun_s)

    def can_sketch(self) -> bool:
        """Whether there is time to make sketches for the grouping."""
        return self.seconds is None or self.left_s > (1.0 - _GROUPED_SHARE) * self.seconds

    def can_lower(self) -> bool:
        """Whether there is time to lower a model that was just imported: some half of what that
        took."""
        return self.seconds is None or self.left_s >= _LOWERED * (self.seconds - self.left_s)

    def timing(self) -> Callable[[], bool]:
        """Says whether there is time to time another contender alone: it begins now."""
        least_s = (1.0 - _TIMED_SHARE) * self.left_s
        return lambda: self.left_s >= least_s

    def tuning_s(self, n_groups: int, kind: str) -> float:
        """Seconds for tuning a network of so many groups."""
        return self.left_s - min(self.ending_s(n_groups, kind), 0.5 * self.left_s)

    def ending_s(self, n_groups: int, kind: str) -> float:
        """Seconds of comparing, building, checking and timing a network of so many groups."""
        return n_groups * (_COMPARED_S[kind] + _BUILT_S[kind]) + self._settled_s

    def can_tune(self, n_groups: int, kind: str) -> bool:
        """Whether there is time to tune a network of so many groups."""
        return self.tuning_s(n_groups, kind) >= _LEAST_TUNING_S

    def comparing_s(self, n_groups: int, kind: str) -> float:
        """Seconds for comparing groups, so that all can be built."""
        return self.left_s - n_groups * _BUILT_S[kind] - self._settled_s

    def can_build(self, n_groups: int, kind: str) -> bool:
        """Whether there is time to build so many groups."""
        return self.left_s >= n_groups * _BUILT_S[kind]

    @property
    def _settled_s(self) -> float:
        if self.seconds is None:
            return 0.0
        return min(_SETTLED_S, _SETTLED_SHARE * self.seconds)


#: That of a call which takes what it takes.
NEVER = Deadline(0.0, None)
