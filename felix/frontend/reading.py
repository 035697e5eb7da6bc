"""Arguments that a conversion reads, and what of them it has not looked at.

A conversion, TVM's or ours, is given the arguments of an operator by these, whichever frontend the
operator comes from: what it did not look at cannot count in its result. What it looked at may
still be dropped: tests change each argument of what is not compared with PyTorch.
"""

from __future__ import annotations

from collections import UserDict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any


class ByName(UserDict[str, Any]):
    """Arguments by name; `unread` has the names that nobody has looked at."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        super().__init__(given)
        self.unread = set(given)

    def __getitem__(self, name: str) -> Any:
        self.unread.discard(name)
        return super().__getitem__(name)


class ByPosition(tuple[Any, ...]):
    """Arguments by position; `unread` has the positions that nobody has looked at.

    Args:
        given: the arguments.
        unread: shared with others who look at the same arguments; all at first.
    """

    unread: set[int]

    def __new__(cls, given: Iterable[Any], unread: set[int] | None = None) -> ByPosition:
        self = super().__new__(cls, given)
        self.unread = {*range(len(self))} if unread is None else unread
        return self

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            self.unread.difference_update(range(len(self))[index])
        else:
            self.unread.discard(index + (len(self) if index < 0 else 0))
        return super().__getitem__(index)

    def __iter__(self) -> Iterator[Any]:
        for index, value in enumerate(self.given()):
            self.unread.discard(index)
            yield value

    def given(self) -> Iterator[Any]:
        """The arguments, which are not looked at by this."""
        return super().__iter__()
