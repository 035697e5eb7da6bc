"""Which of a network's calls may run side by side: branches of its CUDA graph.

Calls come in the order in which they would run one after the other. A call waits for those that
wrote what it reads or writes, and for those that read what it writes; memory that several values
share in turn counts, too. Each call goes on in the branch of one that it waits for, if that branch
has not gone on already, and in a free branch otherwise.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TypeAlias

#: The first address of a tensor and the one behind its last.
Span: TypeAlias = tuple[int, int]

#: More branches than this gain nothing: each holds a kernel that fills a part of the GPU.
MAX_BRANCHES = 8


@dataclasses.dataclass(frozen=True, slots=True)
class Place:
    """Where a call runs.

    Attributes:
        branch: the number of its branch; calls of a branch run in order.
        waits_for: calls of other branches, by number in order of `place`, that must have ended.
    """

    branch: int
    waits_for: tuple[int, ...]


class Order:
    """Places calls one by one; calls are numbered from 0."""

    def __init__(self, max_branches: int = MAX_BRANCHES) -> None:
        self._max_branches = max_branches
        self._reads: list[tuple[Span, int]] = []
        self._writes: list[tuple[Span, int]] = []
        #: Of each call the set of calls that have ended when it begins, as bits.
        self._before: list[int] = []
        self._branches: list[int] = []
        #: The last call of each branch.
        self._last: list[int] = []

    @property
    def last_calls(self) -> list[int]:
        """The last call of each branch."""
        return list(self._last)

    def place(self, reads: Sequence[Span], writes: Sequence[Span]) -> Place:
        """Where the next call runs, which reads and writes these."""
        number = len(self._before)
        needed = self._needed(reads, writes)
        branch = self._branch(needed)
        before = self._closed(needed)
        waits_for: list[int] = []
        if branch < len(self._last):
            last = self._last[branch]
            waits_for = [each for each in needed if not self._ended(each, at=last)]
            before |= self._before[last] | 1 << last
            self._last[branch] = number
        else:
            waits_for = needed
            self._last.append(number)
        self._before.append(before)
        self._branches.append(branch)
        self._note(number, reads, writes)
        return Place(branch, tuple(waits_for))

    def _needed(self, reads: Sequence[Span], writes: Sequence[Span]) -> list[int]:
        """The calls to wait for, without those that another one of them has waited for."""
        touched = [*reads, *writes]
        every = {call for span, call in self._writes if _meets(span, touched)}
        every |= {call for span, call in self._reads if _meets(span, writes)}
        return [
            each
            for each in sorted(every)
            if not any(self._before[other] >> each & 1 for other in every)
        ]

    def _branch(self, needed: Sequence[int]) -> int:
        ends = [each for each in needed if self._last[self._branches[each]] == each]
        if ends:
            return self._branches[ends[-1]]
        before = self._closed(needed)
        for branch, last in enumerate(self._last):
            if before >> last & 1:
                return branch
        if len(self._last) < self._max_branches:
            return len(self._last)
        return min(range(len(self._last)), key=lambda branch: self._last[branch])

    def _closed(self, calls: Sequence[int]) -> int:
        """These calls and all that end before them."""
        every = 0
        for each in calls:
            every |= self._before[each] | 1 << each
        return every

    def _ended(self, call: int, at: int) -> bool:
        """Whether a call has ended when another one ends."""
        return call == at or bool(self._before[at] >> call & 1)

    def _note(self, number: int, reads: Sequence[Span], writes: Sequence[Span]) -> None:
        """Remember a call; what is overwritten as a whole need not be waited for any more."""
        for spans in (self._reads, self._writes):
            spans[:] = [each for each in spans if not _within(each[0], writes)]
        self._reads += [(span, number) for span in reads]
        self._writes += [(span, number) for span in writes]


def _meets(span: Span, others: Sequence[Span]) -> bool:
    return any(span[0] < end and begin < span[1] for begin, end in others)


def _within(span: Span, others: Sequence[Span]) -> bool:
    return any(begin <= span[0] and span[1] <= end for begin, end in others)
