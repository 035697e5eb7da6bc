"""Legal rows where random ones are hardly ever legal; structures that do not fit or differ."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import te, topi

import felix
from felix.search import scoring
from felix.space import diversity, legality, sampling
from felix.space import sketch as sketching
from felix.space.variables import Variable
from felix.symbolic import interpret
from felix.task import Task
from tests.corpus import outcome
from tests.support import synthetic


def chain(depth: int) -> Task:
    """Products one after another: a kernel each, with limits of its own."""
    x = last = te.placeholder((37, 48), name="x")
    weights = [te.placeholder((48, 48), name=f"w{number}") for number in range(depth)]
    for weight in weights:
        last = topi.nn.relu(topi.nn.dense(last, weight))
    return Task.from_te([x, *weights, last], "cuda -arch=sm_90", name="chain")


@pytest.mark.slow("samples a space of many kernels")
def test_rows_are_found_where_every_kernel_has_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "MAX_DRAWN", sampling.CHUNK)
    sketch = felix.trace_sketches(chain(5))[0]
    rows = sketch.sample(4, seed=0)
    compiled = sketch.formulas.of_structure((interpret.ROOT,) * _n_structural(sketch.variables))
    values = compiled.constraint_program.exact(rows.astype(np.float64))
    assert len(rows) == 4 and legality.is_legal(values).all()
    sketch.schedule(rows[0])


def _n_structural(variables: tuple[Variable, ...]) -> int:
    return sum(variable.structural for variable in variables)


def test_a_space_without_legal_rows_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "MAX_DRAWN", sampling.CHUNK)
    monkeypatch.setattr(
        legality, "n_failed", lambda constraints: np.ones(len(constraints), np.int64)
    )
    monkeypatch.setattr(legality, "is_legal", lambda constraints: np.zeros(len(constraints), bool))
    sketch = felix.trace_sketches(felix.workloads.parse("gemm:16,16,16", target="llvm"))[0]
    with pytest.raises(felix.errors.InvalidSchedule, match="no legal decisions"):
        sketch.sample(4, seed=0)


def test_locations_beyond_a_variables_domain_are_left_out() -> None:
    """TVM draws them where another location makes more loops."""
    variable = Variable("location1", "choice", (-2, -1, 0, 1), 1, None, 0, True, False)

    class Anything:
        def of_structure(self, structure: tuple[int, ...]) -> None: ...

    drawn = iter([(12,), (1,), (0,)])
    structures = sampling._structures(
        [variable], Anything(), lambda seed: next(drawn, None), np.random.default_rng(0), 6
    )
    assert structures == [(interpret.ROOT,), (1,), (0,)]


def test_a_row_is_legal_where_all_constraints_hold() -> None:
    over = 2 * legality.TOLERANCE
    values = np.asarray([[-1.0, 0.0], [-1.0, legality.TOLERANCE], [over, -1.0], [-1.0, over]])
    assert legality.is_legal(values).tolist() == [True, True, False, False]
    assert legality.is_legal(np.zeros((3, 0))).tolist() == [True] * 3


def test_scores_follow_the_same_rule() -> None:
    sketch = synthetic.FakeSketch(extents=(512,), capacity=64, with_choices=False)
    rows = np.asarray([[2, 4, 16, 4], [1, 4, 16, 8], [512, 1, 1, 1]])  # at the limit, over, under
    values = sketch.of_structure(()).constraint_program.exact(rows.astype(np.float64))
    legal = scoring.Scorer([sketch], synthetic.CostModel()).legal(0, rows)
    assert legal.tolist() == legality.is_legal(values).tolist() == [True, False, True]


def test_constraints_that_fail_are_counted_a_row() -> None:
    constraints = np.array([[-1.0, 0.0, 1e-12], [1.0, 0.0, np.nan]])
    assert legality.n_failed(constraints).tolist() == [0, 2]
    assert legality.is_legal(constraints).tolist() == [True, False]


# ---------------------------------------------------------------- structures differ


@pytest.fixture(scope="module")
def short_chain() -> list[sketching.Sketch]:
    """Of 81: two products on a CPU, each with three places of its result, and two sums."""
    return sketching.sketches(Task.from_te(outcome.PROGRAMS["attention"](), "llvm", "attention"))


def places(sketch: sketching.Sketch) -> tuple[int, int, int]:
    """How often a sketch caches a result, moves one, and factors a sum."""
    kinds = [inst.kind for inst in sketch.instructions]
    return kinds.count("CacheWrite"), kinds.count("ReverseComputeAt"), kinds.count("RFactor")


@pytest.mark.slow("opens a chain of many products")
def test_a_chain_of_products_has_a_limited_number_of_sketches(
    short_chain: list[sketching.Sketch],
) -> None:
    indices = [sketch.index for sketch in short_chain]
    assert len(indices) == diversity.MAX_STOCK
    assert indices == sorted(set(indices)) and indices[0] == 0
    assert 16 < indices[-1] <= 80  # numbers are those of the whole space


def test_the_sketches_that_are_used_differ(short_chain: list[sketching.Sketch]) -> None:
    assert {factored for _, _, factored in map(places, short_chain)} == {0, 1, 2}
    assert len({places(sketch) for sketch in short_chain}) > 4


def test_what_is_chosen_is_far_apart(short_chain: list[sketching.Sketch]) -> None:
    instructions = [sketch.instructions for sketch in short_chain]
    effects = [diversity._effects(each) for each in instructions]
    chosen = diversity.diverse(instructions, 3)
    assert chosen[0] == 0 and len(chosen) == 3
    differences = [len(effects[0] ^ each) for each in effects]
    assert differences.index(max(differences)) in chosen


def test_few_sketches_are_all_used(short_chain: list[sketching.Sketch]) -> None:
    instructions = [sketch.instructions for sketch in short_chain[:4]]
    assert diversity.diverse(instructions, 4) == [0, 1, 2, 3]
