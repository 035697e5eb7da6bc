"""Pages of sorted rows that neither skip nor repeat one while rows are made, changed and deleted.

A page's cursor is what its last row is sorted by, and that row's number. The next page has the
rows behind it, whether or not that row is still there. Rows with equal values are in the order of
their numbers, newest first; rows without a value come last in both directions.
"""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any, Self

import sqlalchemy as sa

from server import errors

Value = str | int | float | None

#: The largest number of an INTEGER column.
_MAX_INT = 2**31 - 1


@dataclasses.dataclass(frozen=True, slots=True)
class Cursor:
    """The last row of a page: the value it is sorted by and its number."""

    value: Value
    number: int

    def __str__(self) -> str:
        """As an address has it; `7` for the row 7 of a list that is sorted by number."""
        if self.value == self.number:
            return str(self.number)
        return f"{self.number}:{json.dumps(self.value, ensure_ascii=False)}"

    @classmethod
    def of(cls, text: str, kind: type) -> Self:
        """Read a text of `str`.

        Args:
            kind: of the values: `str`, `int` or `float`.

        Raises:
            InvalidRequest: it is none, or its value is of another kind.
        """
        number, separator, rest = text.partition(":")
        try:
            value = json.loads(rest) if separator else int(number)
            if not 0 <= int(number) <= _MAX_INT or not _is_of(value, kind):
                raise ValueError
        except (ValueError, RecursionError):
            raise errors.InvalidRequest("this page of the list does not exist") from None
        return cls(value, int(number))


def ordered(
    query: sa.Select[Any],
    value: sa.ColumnElement[Any],
    number: sa.ColumnElement[int],
    descending: bool,
    after: Cursor | None,
) -> sa.Select[Any]:
    """The query in the order of `value`, from behind the cursor on."""
    if after is not None:
        query = query.where(_behind(value, number, descending, after))
    direction = value.desc() if descending else value.asc()
    return query.order_by(value.is_(None), direction, number.desc())


def _behind(
    value: sa.ColumnElement[Any], number: sa.ColumnElement[int], descending: bool, after: Cursor
) -> sa.ColumnElement[bool]:
    if after.value is None:
        return sa.and_(value.is_(None), number < after.number)
    further = value < after.value if descending else value > after.value
    same = sa.and_(value == after.value, number < after.number)
    return sa.or_(further, same, value.is_(None))


def _is_of(value: Any, kind: type) -> bool:
    if value is None:
        return True
    if kind is str:
        return isinstance(value, str) and value.isprintable()
    if isinstance(value, bool) or not isinstance(value, int if kind is int else (int, float)):
        return False
    return abs(value) <= _MAX_INT if kind is int else math.isfinite(value)
