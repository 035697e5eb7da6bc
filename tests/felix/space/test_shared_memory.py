"""Shared memory above 48 KiB: which schedules have it, and that TVM and formulas agree."""

from __future__ import annotations

import numpy as np
import pytest
import tvm

from benchmarks.support.verify import compare
from felix import workloads
from felix.builder.cuda import build as cuda_build
from felix.errors import InvalidSchedule
from felix.metaschedule import trace_text
from felix.space import sketch as sketching
from felix.tir import design_space
from felix.tir.design_space import shared_memory
from tests.support import legal_rows

H200 = "cuda -arch=sm_90"
STATIC, MOST = 48 * 1024, 227 * 1024
#: TVM aligns each buffer of dynamic memory to so many bytes.
ALIGNMENT = 64


@pytest.fixture(scope="module")
def sketches() -> list[sketching.Sketch]:
    return sketching.trace_sketches(workloads.gemm(256, 256, 256, dtype="float16", target=H200))


@pytest.fixture(scope="module", params=[0, 2], ids=["plain", "pipelined"])
def sketch(request: pytest.FixtureRequest, sketches: list[sketching.Sketch]) -> sketching.Sketch:
    return sketches[request.param]


def rows_of(sketch: sketching.Sketch, least: int, most: int, n: int = 2) -> list[tuple[int, ...]]:
    """The first decisions with least < shared bytes <= most."""
    rows = legal_rows.draw(sketch, 400, seed=5)
    used = sketch.formulas.shared_bytes(rows)
    chosen = rows[(used > least) & (used <= most)][:n]
    assert len(chosen) == n
    return [tuple(row) for row in chosen.tolist()]


def scopes(trace: tvm.s_tir.schedule.Trace) -> set[str]:
    return {str(i.attrs[1]) for i in trace.insts if i.kind.name == "CacheRead"}


def test_shared_memory_is_dynamic_only_above_the_static_limit(sketch: sketching.Sketch) -> None:
    for decisions in rows_of(sketch, 0, STATIC):
        assert scopes(sketch.with_decisions(decisions)) == {"shared"}
        assert len(sketch.schedule(decisions).trace.insts) > len(sketch.trace.insts)
    for decisions in rows_of(sketch, STATIC, MOST):
        assert scopes(sketch.with_decisions(decisions)) == {"shared.dyn"}
        assert sketch.decisions_of(sketch.with_decisions(decisions)) == decisions


def test_formulas_say_what_tvm_makes_in_both_kinds(sketch: sketching.Sketch) -> None:
    rows = [*rows_of(sketch, STATIC, MOST), *rows_of(sketch, STATIC // 2, STATIC)]
    report = compare.check_rows(sketch, np.asarray(rows))
    assert (report.checked, report.mismatches) == (4, ())


def test_a_launch_asks_for_what_the_formulas_count(sketch: sketching.Sketch) -> None:
    for decisions in rows_of(sketch, STATIC, MOST):
        mod = sketch.schedule(decisions).mod
        (launch,) = cuda_build.lower(mod, sketch.task.target).plan.launches
        (counted,) = sketch.formulas.shared_bytes(np.asarray([decisions]))
        assert counted <= launch.shared_bytes < counted + 2 * ALIGNMENT


def test_small_kernels_ask_for_nothing_at_launch(sketch: sketching.Sketch) -> None:
    decisions = rows_of(sketch, 0, STATIC)[0]
    lowered = cuda_build.lower(sketch.schedule(decisions).mod, sketch.task.target)
    assert [launch.shared_bytes for launch in lowered.plan.launches] == [0]


def test_a_trace_of_either_kind_is_of_its_sketch(sketches: list[sketching.Sketch]) -> None:
    finder = trace_text.Finder(sketches)
    for number in (0, 2):
        small, large = (
            rows_of(sketches[number], *bounds, n=1)[0] for bounds in ((0, STATIC), (STATIC, MOST))
        )
        for decisions in (small, large):
            trace = sketches[number].schedule(decisions).trace
            assert finder.find(*trace_text.read(trace.simplified(True))) == (number, decisions)


def test_tvm_alone_applies_a_stored_trace(sketch: sketching.Sketch) -> None:
    decisions = rows_of(sketch, STATIC, MOST, n=1)[0]
    schedule = sketch.schedule(decisions)
    stored = tvm.ir.load_json(tvm.ir.save_json(schedule.trace.as_json()))
    again = tvm.s_tir.Schedule(sketch.task.mod)
    tvm.s_tir.schedule.Trace.apply_json_to_schedule(stored, again)
    tvm.ir.assert_structural_equal(again.mod, schedule.mod)


def test_a_user_s_limit_holds() -> None:
    target = {"kind": "cuda", "arch": "sm_90", "max_shared_memory_per_block": 64 * 1024}
    sketch = sketching.trace_sketches(workloads.gemm(256, 256, 256, target=target))[0]
    rows = legal_rows.draw(sketch, 400, seed=5)
    used = sketch.formulas.shared_bytes(rows)
    assert STATIC < used.max() <= 64 * 1024
    wider = sketching.trace_sketches(workloads.gemm(256, 256, 256, target=H200))[0]
    with pytest.raises(InvalidSchedule, match="VerifyGPUCode"):
        sketch.schedule(rows_of(wider, 64 * 1024, MOST, n=1)[0])


def test_rules_of_tvm_alone_stay_in_static_memory(sketch: sketching.Sketch) -> None:
    """TVM's own search has the limit that its traces can be built with."""
    decisions = rows_of(sketch, STATIC, MOST, n=1)[0]
    assert scopes(sketch.apply_stock(decisions).trace) == {"shared"}
    context = design_space.tune_context(sketch.task.mod, sketch.task.target)
    assert int(context.target.attrs["max_shared_memory_per_block"]) == STATIC
    attributes = {"kind": "cuda", "arch": "sm_90", "max_shared_memory_per_block": 1024}
    small = tvm.target.Target(attributes)
    assert shared_memory.static_target(small).same_as(small)
