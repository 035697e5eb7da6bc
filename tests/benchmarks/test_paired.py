"""Ratios of two searches over tasks and seeds."""

from __future__ import annotations

import math
from typing import Any

import pytest

from benchmarks.support import paired


def run(name: str, strategy: str, seed: int, *points: tuple[float, float]) -> dict[str, Any]:
    """A search with its bests (elapsed_s, best_us)."""
    curve = [(n, *point) for n, point in enumerate(points, 1)]
    return {
        "name": name,
        "seed": seed,
        "strategy": strategy,
        "curve": curve,
        "n_measured": len(points),
        "wall_s": points[-1][0],
    }


RUNS = [
    run("a", "felix", 0, (1.0, 20.0), (2.0, 10.0)),
    run("a", "gradient", 0, (2.0, 15.0), (4.0, 10.0)),
    run("a", "felix", 1, (1.0, 10.0), (3.0, 9.9)),
    run("a", "gradient", 1, (1.0, 18.0), (6.0, 17.0)),  # never got there
    run("b", "felix", 0, (1.0, 30.0), (5.0, 29.0)),
    run("b", "gradient", 0, (2.0, 20.0), (2.5, 19.0)),
]
WINNERS: list[dict[str, Any]] = [
    {"name": name, "seed": 0, "strategy": "winners", "median_us": {"felix": 10.0, "gradient": us}}
    for name, us in (("a", 12.0), ("b", None))
]


def test_a_mean_has_an_interval_over_tasks() -> None:
    alike = paired.mean([[math.log(2.0)] * 3, [math.log(2.0)]])
    assert (alike.mean, alike.low, alike.high) == pytest.approx((2.0, 2.0, 2.0))
    unequal = paired.mean([[math.log(2.0)] * 3, [math.log(0.5)]])
    assert unequal.mean == pytest.approx(1.0), "tasks count, not searches"
    apart = paired.mean([[math.log(0.5)], [math.log(1.0)], [math.log(2.0)]])
    assert apart.mean == pytest.approx(1.0) and 0.5 <= apart.low < 1.0 < apart.high <= 2.0
    assert str(alike) == "2.000 (interval 2.000 to 2.000)"


def test_times_are_to_the_best_of_a_seed() -> None:
    """4 over 2 s, at least 6 over 1 s; of the other task 2 s over 5 s, when Felix ended."""
    ratio, n = paired.times(RUNS, "gradient", 0.95)
    assert n == 3 and ratio.mean == pytest.approx(math.sqrt(math.sqrt(2.0 * 6.0) * 0.4))


def test_best_latencies_after_as_many_trials() -> None:
    """Searches that had fewer, or no result by then, are left out."""
    ratio = paired.of_best(RUNS, "gradient", 1)
    assert ratio is not None
    of_a, of_b = math.sqrt(15 / 20 * 18 / 10), 20 / 30
    assert ratio.mean == pytest.approx(math.sqrt(of_a * of_b))
    assert paired.of_best(RUNS, "gradient", 1000) is None


def test_times_by_operator() -> None:
    """Sums and norms are one group; of a convolution neither search got there."""
    workloads = {"a": "reduce:8x8,axes=1", "b": "softmax:8x8", "c": "conv2d:1,8,8,4,4,3"}
    others = [
        run("c", "felix", 0, (1.0, 30.0)),
        run("c", "gradient", 0, (1.0, 30.0)),
        run("c", "random", 0, (1.0, 10.0)),
    ]
    each = paired.times_by_operator([*RUNS, *others], workloads, "gradient", 0.95)
    assert each == {"sums and norms": paired.times(RUNS, "gradient", 0.95)}
    apart = paired.times_by_operator(RUNS, workloads | {"b": "gemm:8,8,8"}, "gradient", 0.95)
    assert apart["gemm"][0].mean == pytest.approx(0.4) and apart["gemm"][1] == 1


def test_whole_searches_and_winners() -> None:
    assert paired.of_whole(RUNS, "gradient").mean == pytest.approx(math.sqrt(2.0 * 0.5))
    winners = paired.of_winners(WINNERS, "gradient")
    assert winners is not None and winners.mean == pytest.approx(1.2)
    assert paired.of_winners(RUNS, "gradient") is None


def test_winners_by_operator() -> None:
    """An operator of whose winners none were timed is left out."""
    apart = {"a": "gemm:8,8,8", "b": "conv2d:1,8,8,4,4,3"}
    own = paired.of_winners(WINNERS[:1], "gradient")
    assert paired.winners_by_operator(WINNERS, apart, "gradient") == {"gemm": own}


def test_without_felix_others_are_compared_with_the_gradient_search() -> None:
    renamed = {"felix": "gradient", "gradient": "gradient-thompson"}
    runs = [{**run, "strategy": renamed.get(run["strategy"], run["strategy"])} for run in RUNS]
    assert paired.reference(RUNS) == "felix" and paired.reference(runs) == "gradient"
    for share in (0.9, 0.95):
        expected = paired.times(RUNS, "gradient", share)
        assert paired.times(runs, "gradient-thompson", share) == expected
