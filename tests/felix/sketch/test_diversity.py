"""Of many sketches, those that differ most are used."""

from __future__ import annotations

import pytest

from felix.sketch import diversity
from felix.sketch import sketch as sketching
from felix.task import Task
from tests.corpus import outcome


@pytest.fixture(scope="module")
def chain() -> list[sketching.Sketch]:
    """Of 81: two products on a CPU, each with three places of its result, and two sums."""
    return sketching.sketches(Task.from_te(outcome.PROGRAMS["attention"](), "llvm", "attention"))


def places(sketch: sketching.Sketch) -> tuple[int, int, int]:
    """How often a sketch caches a result, moves one, and factors a sum."""
    kinds = [inst.kind for inst in sketch.instructions]
    return kinds.count("CacheWrite"), kinds.count("ReverseComputeAt"), kinds.count("RFactor")


def test_a_chain_of_products_has_a_limited_number_of_sketches(
    chain: list[sketching.Sketch],
) -> None:
    indices = [sketch.index for sketch in chain]
    assert len(indices) == diversity.MAX_STOCK
    assert indices == sorted(set(indices)) and indices[0] == 0
    assert 16 < indices[-1] <= 80  # numbers are those of the whole space


def test_the_sketches_that_are_used_differ(chain: list[sketching.Sketch]) -> None:
    assert {factored for _, _, factored in map(places, chain)} == {0, 1, 2}
    assert len({places(sketch) for sketch in chain}) > 4


def test_what_is_chosen_is_far_apart(chain: list[sketching.Sketch]) -> None:
    instructions = [sketch.instructions for sketch in chain]
    effects = [diversity._effects(each) for each in instructions]
    chosen = diversity.diverse(instructions, 3)
    assert chosen[0] == 0 and len(chosen) == 3
    differences = [len(effects[0] ^ each) for each in effects]
    assert differences.index(max(differences)) in chosen


def test_few_sketches_are_all_used(chain: list[sketching.Sketch]) -> None:
    instructions = [sketch.instructions for sketch in chain[:4]]
    assert diversity.diverse(instructions, 4) == [0, 1, 2, 3]
