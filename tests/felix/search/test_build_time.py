"""What a build is predicted to cost, beside the programs that are built."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from felix import workloads
from felix.features.kind import FeatureKind
from felix.measure.cuda.building import build
from felix.measure.pool import local
from felix.search import build_time, scoring, selection
from felix.sketch import sketch as sketching
from tests.support import synthetic

FEATURES = ("code_copies", "is_reduction", "buf0.shared", "serial_trips")


def annotation(key: str, value: Any) -> SimpleNamespace:
    return SimpleNamespace(kind="Annotate", attrs=(key,), inputs=("loop", value))


ORDER, STAGE = (annotation(f"software_pipeline_{key}", (0, 0, 3)) for key in ("order", "stage"))


def of(rows: list[list[float]], instructions: tuple[Any, ...] = ()) -> build_time.BuildCost:
    """Cost of one GPU candidate from features of its rows, in the order of `FEATURES`."""
    formulas = SimpleNamespace(names=list(FEATURES), kind=FeatureKind.TRACE)
    sketch = SimpleNamespace(is_gpu=True, instructions=instructions, formulas=formulas)
    return build_time.BuildCost.of(sketch, np.log2(1 + np.asarray([rows])))


def test_a_pipeline_writes_its_last_stage_out_several_times() -> None:
    assert build_time.pipeline_copies([]) == build_time.pipeline_copies([ORDER]) == 1
    assert build_time.pipeline_copies([ORDER, STAGE]) == 4


def test_only_the_body_of_a_pipeline_is_written_again() -> None:
    """A kernel of 100 statements: init 8, a fetch 4, update 80, write-back 8."""
    rows = [[8, 0, 0, 0], [4, 0, 1, 0], [80, 1, 0, 0], [8, 0, 0, 0]]
    np.testing.assert_allclose(of(rows).statements, [100])
    np.testing.assert_allclose(of(rows, (STAGE,)).statements, [16 + 4 * 84])


def test_seconds_of_a_cuda_build() -> None:
    """Each kind of store has its cost, and NVRTC unrolls what TVM has not."""
    nothing = build_time.CUDA_S
    assert of([[0, 0, 0, 0]]).compile_s == pytest.approx(nothing)
    update, fetch, write = [2000, 1, 0, 2000], [2000, 0, 1, 2000], [2000, 0, 0, 2000]
    trips_s = 0.11e-6 * 2000
    assert of([update]).compile_s == pytest.approx(nothing + 2 + trips_s)
    assert of([fetch]).compile_s == pytest.approx(nothing + 1)
    assert of([write]).compile_s == pytest.approx(nothing + 3.2)
    assert of([update, fetch, write]).compile_s == pytest.approx(nothing + 6.2 + trips_s)
    assert of([[1, 1, 0, 10e6]]).compile_s == pytest.approx(nothing + 0.001 + 1.1)
    assert of([[100, 0, 1, 400]]).compile_s == pytest.approx(nothing + 0.2)
    assert of([[100, 0, 1, 1e6]]).compile_s == pytest.approx(nothing + 0.4)
    assert of([[100, 0, 0, 1e6]]).compile_s == pytest.approx(nothing + 2.56)
    piped = of([update, fetch, write], (STAGE,)).compile_s
    assert piped == pytest.approx(nothing + 4 * 3 + trips_s + 3.2)


def test_the_limit_is_half_of_what_a_builder_has() -> None:
    limit_s = selection.SelectionOptions().max_compile_s
    assert limit_s == local.LocalOptions().build_timeout_s / 2 == 3


def test_statements_of_a_cpu_are_those_of_the_largest_kernel() -> None:
    (sketch, *_) = sketching.trace_sketches(workloads.gemm(32, 32, 32))
    rows = sketch.sample(16, seed=0)
    cost = scoring.Scorer([sketch], synthetic.CostModel()).score(0, rows).build
    raw = sketch.formulas.raw(rows)[..., list(sketch.formulas.names).index("code_statements")]
    np.testing.assert_allclose(cost.statements, raw.max(axis=1), rtol=1e-6)
    assert not cost.compile_s.any()


@pytest.mark.parametrize(
    ("text", "copies"), [("gemm:256,256,256", {1, 3, 4}), ("layer_norm:512x256", {1})]
)
def test_statements_agree_with_the_cuda_source(text: str, copies: set[int]) -> None:
    """Mostly: of a fetch whose vectors TVM takes apart the source has many lines more.

    Of every sketch, pipelined ones and two kernels among them; 15 lines are no statements.
    """
    task = workloads.parse(text, target="h200")
    sketches = sketching.trace_sketches(task)
    assert {build_time.pipeline_copies(s.instructions) for s in sketches} == copies
    for sketch in sketches:
        rows = sketch.sample(24, seed=1)
        cost = build_time.BuildCost.of(sketch, sketch.formulas.exact(rows))
        ratios = []
        for index in np.argsort(np.abs(np.log(cost.statements / 300)))[:7].tolist():
            source = build.lower(sketch.schedule(rows[index]).mod, task.target).source.text
            ratios.append(cost.statements[index] / (source.count(";\n") - 15))
        assert np.median(ratios) == pytest.approx(1, abs=0.3)
