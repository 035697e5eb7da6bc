"""Legal rows where random decisions are hardly ever legal, and structures that do not fit."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import te, topi

import felix
from felix.sketch import legality, sampling
from felix.sketch.variables import Variable
from felix.symbolic import interpret
from felix.task import Task


def chain(depth: int) -> Task:
    """Products one after another: a kernel each, with limits of its own."""
    x = last = te.placeholder((37, 48), name="x")
    weights = [te.placeholder((48, 48), name=f"w{number}") for number in range(depth)]
    for weight in weights:
        last = topi.nn.relu(topi.nn.dense(last, weight))
    return Task.from_te([x, *weights, last], "cuda -arch=sm_90", name="chain")


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
