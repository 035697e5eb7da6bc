"""Allocation of rounds, and what a build is predicted to cost."""

from __future__ import annotations

import json
import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from felix import errors, workloads
from felix.builder.cuda import build
from felix.features.kind import FeatureKind
from felix.measure import local
from felix.search import allocate, build_time, scoring, selection
from felix.space import sketch as sketching
from tests.support import share, synthetic


def run(
    allocator: allocate.Allocator, rounds: int, latency: dict[int, list[float | None]]
) -> list[int]:
    """Deal rounds; task i's k-th round gives latency[i][k], its last value thereafter."""
    order, done = [], [0] * len(allocator.tasks)
    for _ in range(rounds):
        task = allocator.next()
        if task is None:
            break
        values = latency[task]
        allocator.record(task, values[min(done[task], len(values) - 1)], n_measured=8)
        done[task] += 1
        order.append(task)
    return order


def test_every_task_is_warmed_up_once_first() -> None:
    allocator = allocate.Allocator([1.0, 5.0, 1.0])
    assert run(allocator, 3, {0: [9.0], 1: [9.0], 2: [9.0]}) == [0, 1, 2]


def test_heavier_and_slower_tasks_go_first() -> None:
    allocator = allocate.Allocator([1.0, 4.0, 1.0])
    order = run(allocator, 30, {0: [10.0], 1: [10.0], 2: [40.0]})
    assert order.count(1) > order.count(0) and order.count(2) > order.count(0)


def test_a_task_at_its_floor_gets_no_more_rounds() -> None:
    allocator = allocate.Allocator([1.0, 1.0], floors_us=[10.0, 1.0])
    assert run(allocator, 20, {0: [10.0], 1: [10.0]}) == [0, *[1] * 19]


def test_only_what_is_below_the_rival_is_a_gain() -> None:
    """A task that is far behind what else runs it is left alone; first rounds go where the rival
    is farthest from the device's peak rates."""
    floors, rivals = [1.0, 1.0, 1.0], [2.0, 30.0, math.inf]
    allocator = allocate.Allocator([1.0] * 3, floors, [2.0, 2.0, 25.0], rivals)
    assert allocator.order == [1, 2, 0]
    order = run(allocator, 20, {0: [50.0], 1: [10.0], 2: [4.0]})
    assert order[:3] == [1, 2, 0] and order.count(0) == 1
    assert allocator.gain_us(0) == 0.0 < allocator.gain_us(1)


def test_a_task_that_still_improves_is_preferred() -> None:
    falling = [100.0, 80.0, 60.0, 50.0, 40.0, 30.0, 20.0]
    allocator = allocate.Allocator([1.0, 1.0])
    order = run(allocator, 12, {0: falling, 1: [20.0]})
    assert order.count(0) > order.count(1)


def test_a_task_that_always_fails_dies() -> None:
    allocator = allocate.Allocator([1.0, 1.0])
    order = run(allocator, 50, {0: [None], 1: [5.0]})
    assert order.count(0) == 3 and not allocator.is_open(0)
    assert allocator.gain_us(0) == 0.0


def test_a_task_that_succeeds_late_lives() -> None:
    allocator = allocate.Allocator([1.0])
    assert len(run(allocator, 10, {0: [None, None, 7.0]})) == 10
    assert allocator.tasks[0].latency_us == 7.0


def test_empty_rounds_end_the_run() -> None:
    allocator = allocate.Allocator([1.0, 1.0])
    allocator.record(0, 5.0, 8)
    for _ in range(100):
        task = allocator.next()
        if task is None:
            break
        allocator.record(task, None, 0)
    assert allocator.next() is None


def test_an_empty_round_is_forgiven_by_a_full_one() -> None:
    allocator = allocate.Allocator([1.0])
    for _ in range(5):
        allocator.record(0, 5.0, 8)
        allocator.record(0, None, 0)
        allocator.record(0, None, 0)
        assert allocator.next() == 0


def test_a_worse_round_does_not_lose_the_best() -> None:
    allocator = allocate.Allocator([1.0])
    allocator.record(0, 5.0, 8)
    allocator.record(0, 9.0, 8)
    allocator.record(0, None, 8)
    assert allocator.tasks[0].best_us == [5.0, 5.0, 5.0]


def test_a_run_converges_when_every_open_task_has_stalled() -> None:
    allocator = allocate.Allocator([1.0, 1.0])
    for task, latencies in enumerate(([10.0, 9.99, 9.98], [10.0, 8.0, 6.0])):
        for latency_us in latencies:
            allocator.record(task, latency_us, 8)
    assert not allocator.has_converged(2, 0.01)
    for _ in range(2):
        allocator.record(1, None, 8)
    assert allocator.has_converged(2, 0.01)
    assert not allocator.has_converged(3, 0.01)


def test_a_floor_is_half_the_time_at_peak_rates() -> None:
    machine = SimpleNamespace(peak_fp32_gflops=100.0, dram_bandwidth_gbs=10.0)
    assert allocate.floor_us(4e6, 1e3, machine) == pytest.approx(20.0)
    assert allocate.floor_us(4e3, 1e6, machine) == pytest.approx(50.0)
    machine = SimpleNamespace(peak_fp32_gflops=math.nan, dram_bandwidth_gbs=10.0)
    assert allocate.floor_us(4e6, 1e3, machine) == 0.0


@pytest.mark.parametrize(
    "dtype, kind, floor_us",
    [
        ("float32", "cuda", 2 * 64**3 / 100e3 / 2),
        ("bfloat16", "llvm", 2 * 64**3 / 100e3 / 2),
        ("bfloat16", "cuda", 2 * 3 * 64**2 / 10e3 / 2),
        ("float8_e4m3fn", "cuda", (1 + 1 + 2) * 64**2 / 10e3 / 2),
    ],
)
def test_the_peak_rate_of_float32_is_no_floor_of_tensor_cores(
    dtype: str, kind: str, floor_us: float
) -> None:
    machine = SimpleNamespace(peak_fp32_gflops=100.0, dram_bandwidth_gbs=10.0)
    task = workloads.gemm(64, 64, 64, dtype=dtype, target=kind)
    assert allocate.task_floor_us(task, machine) == pytest.approx(floor_us)


def test_the_state_survives_json() -> None:
    allocator = allocate.Allocator([1.0, 2.0], floors_us=[0.5, 0.0])
    run(allocator, 9, {0: [None, 5.0], 1: [6.0, 4.0]})
    state = json.loads(json.dumps(allocator.state_dict()))
    again = allocate.Allocator([1.0, 2.0])
    again.load_state_dict(state)
    assert again.tasks == allocator.tasks and again.next() == allocator.next()


@pytest.mark.parametrize("state", [{}, {"tasks": []}, {"tasks": [{}, {}]}, {"tasks": 3}])
def test_a_damaged_state_is_one_clear_error(state: dict) -> None:
    with pytest.raises(errors.RecordError):
        allocate.Allocator([1.0, 2.0]).load_state_dict(state)


def test_late_first_results_are_of_their_round() -> None:
    allocator = allocate.Allocator([1.0, 1.0, 1.0])
    assert allocator.n_fresh == 3
    allocator.record(0, None, 8)
    assert allocator.n_fresh == 2
    assert allocator.record_late(0, 10.0)
    assert allocator.tasks[0].best_us == [10.0]
    assert not allocator.record_late(0, 5.0)  # it has a latency: this counts to the next round
    assert not allocator.record_late(1, 5.0)  # no round of it has ended
    assert allocator.tasks[0].best_us == [10.0] and not allocator.tasks[1].best_us


def test_first_rounds_begin_with_the_tasks_that_take_most_untuned() -> None:
    allocator = allocate.Allocator([1.0, 4.0, 1.0], untuned_us=[10.0, 5.0, 30.0])
    assert run(allocator, 3, {0: [9.0], 1: [9.0], 2: [9.0]}) == [2, 1, 0]


def test_tasks_beside_a_busy_one_must_promise_something() -> None:
    allocator = allocate.Allocator([1.0, 1.0, 1.0])
    assert allocator.next([0]) == 1 and allocator.next([0, 1]) == 2  # first rounds go side by side
    assert allocator.fresh([0]) == [1, 2] and allocator.next([0, 1, 2]) is None
    for index, latency_us in enumerate((1000.0, 200.0, 2.0)):
        allocator.record(index, latency_us, 8)
    assert allocator.next() == 0
    assert allocator.next([0]) == 1
    assert allocator.next([0, 1]) is None  # 2 us are nothing beside 1000 us
    assert allocator.next([1]) == 0


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
    ("text", "copies"), share.of([("gemm:256,256,256", {1, 3, 4}), ("layer_norm:512x256", {1})], 1)
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
        for index in np.argsort(np.abs(np.log(cost.statements / 300)))[
            : share.rounds(3, 7)
        ].tolist():
            source = build.lower(sketch.schedule(rows[index]).mod, task.target).source.text
            ratios.append(cost.statements[index] / (source.count(";\n") - 15))
        assert np.median(ratios) == pytest.approx(1, abs=0.3)
