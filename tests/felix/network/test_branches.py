"""Which calls run side by side: nothing that needs another call runs before it has ended."""

from __future__ import annotations

import itertools
import random

import pytest

from felix.network import branches

Call = tuple[list[branches.Span], list[branches.Span]]


def _buffer(number: int) -> branches.Span:
    return 100 * number, 100 * number + 100


def _placed(calls: list[Call], max_branches: int = 8) -> list[branches.Place]:
    order = branches.Order(max_branches)
    return [order.place(reads, writes) for reads, writes in calls]


def _ended_before(places: list[branches.Place]) -> list[set[int]]:
    """Of each call those that have ended when it begins: in its branch, and what it waits for."""
    last: dict[int, int] = {}
    before: list[set[int]] = []
    for number, place in enumerate(places):
        direct = {*place.waits_for, *([last[place.branch]] if place.branch in last else [])}
        before.append(direct.union(*(before[each] for each in direct)))
        last[place.branch] = number
    return before


def _meet(one: list[branches.Span], other: list[branches.Span]) -> bool:
    return any(a < d and c < b for (a, b), (c, d) in itertools.product(one, other))


def test_a_chain_is_one_branch() -> None:
    places = _placed([([_buffer(n)], [_buffer(n + 1)]) for n in range(5)])
    assert places == [branches.Place(0, ())] * 5


def test_paths_part_and_meet() -> None:
    source, a, b, c, end = map(_buffer, range(5))
    places = _placed([
        ([], [source]), ([source], [a]), ([source], [b]), ([a], [c]), ([b, c], [end]),
    ])  # fmt: skip
    assert [place.branch for place in places] == [0, 0, 1, 0, 0]
    assert [place.waits_for for place in places] == [(), (), (0,), (), (2,)]


def test_memory_that_is_used_again_waits_for_its_readers() -> None:
    a, b, c = map(_buffer, range(3))
    places = _placed([([], [a]), ([a], [b]), ([], [c]), ([c], [a])])
    assert 1 in _ended_before(places)[3]


def test_a_branch_that_has_been_waited_for_is_used_again() -> None:
    source, a, b, end, c, d = map(_buffer, range(6))
    places = _placed([
        ([], [source]), ([source], [a]), ([source], [b]), ([a, b], [end]),
        ([end], [c]), ([end], [d]),
    ])  # fmt: skip
    assert {place.branch for place in places} == {0, 1}


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.parametrize("max_branches", [1, 2, 8])
def test_conflicting_calls_run_in_order(seed: int, max_branches: int) -> None:
    generator = random.Random(seed)

    def spans(least: int, most: int) -> list[branches.Span]:
        begins = [generator.randrange(0, 400, 10) for _ in range(generator.randint(least, most))]
        return [(begin, begin + generator.choice([10, 40, 100])) for begin in begins]

    calls: list[Call] = []
    for _ in range(60):
        writes = spans(1, 2)
        calls.append((spans(0, 3) + writes, writes))
    places = _placed(calls, max_branches)
    before = _ended_before(places)
    assert {place.branch for place in places} <= set(range(max_branches))
    for first, second in itertools.combinations(range(len(calls)), 2):
        (reads, writes), (later_reads, later_writes) = calls[first], calls[second]
        if _meet(writes, later_reads + later_writes) or _meet(reads, later_writes):
            assert first in before[second]


def test_independent_calls_use_all_branches() -> None:
    calls: list[Call] = [([], [_buffer(n)]) for n in range(10)]
    places = _placed(calls, max_branches=4)
    assert {place.branch for place in places} == {0, 1, 2, 3}
    assert all(not place.waits_for for place in places)
