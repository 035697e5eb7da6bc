"""How much of the long tests `make test` runs: a fixed share; `make test-all` runs all of it.

A matrix of many like cases is thinned by `of` or `crossed`, a fuzz or a row of kills by `rounds`.
What cannot be made shorter is marked `@pytest.mark.slow("why")`, and only `make test-all` runs it.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

import pytest

Value = TypeVar("Value")

#: Whether everything runs, as `make test-all` says.
ALL = os.environ.get("FELIX_TESTS") == "all"


def of(values: Iterable[Value], count: int, everything: bool = ALL) -> list[Value]:
    """All values, or `count` of them spread evenly from the first to the last."""
    listed = list(values)
    if everything or count >= len(listed):
        return listed
    return [listed[round(i * (len(listed) - 1) / max(1, count - 1))] for i in range(count)]


def crossed(
    first: Iterable[Any], *others: Sequence[Any], everything: bool = ALL
) -> list[tuple[Any, ...]]:
    """All combinations of values, or each value of the first with one of each of the others."""
    if everything:
        return list(itertools.product(first, *others))
    chosen = []
    for number, value in enumerate(first):
        combination = [value]
        for other in others:
            combination.append(other[number % len(other)])
            number //= len(other)
        chosen.append(tuple(combination))
    return chosen


def rounds(few: int, many: int, everything: bool = ALL) -> int:
    """How many rounds a fuzz has: `many` where everything runs."""
    return many if everything else few


def without_reason(items: Iterable[pytest.Item]) -> list[str]:
    """Ids of tests marked slow without saying why."""
    return sorted(
        {
            item.nodeid
            for item in items
            for mark in item.iter_markers("slow")
            if not (mark.args and isinstance(mark.args[0], str) and mark.args[0].strip())
        }
    )
