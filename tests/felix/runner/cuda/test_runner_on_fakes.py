"""The CUDA run worker on a fake driver: order, checks, memory, whose fault an error is."""

from __future__ import annotations

import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from tvm import te
from tvm.script import tirx as T

from felix import errors, launch_plan, workloads
from felix.builder import task_program
from felix.builder.cuda import reference as cuda_reference
from felix.runner import protocol, timing
from felix.runner.checking import reference
from felix.runner.cuda import driver as cuda_driver
from tests.support import tir_programs
from tests.support.cuda.bench import Bench
from tests.support.cuda.fakes import array, computing, word

N = 64
_N_BYTES = N * 4


add = tir_programs.mapped(lambda a, b: a + b, (N,))
root = tir_programs.mapped(te.sqrt, (N,), names="a")
both = tir_programs.mapped(lambda a: a + a, (N,), "int32", names="a")


@tir_programs.prim_func(s_tir=True)
def accumulate(a: T.Buffer((N,), "float32"), c: T.Buffer((N,), "float32")):
    for i in range(N):
        with T.sblock("c"):
            vi = T.axis.spatial(N, i)
            c[vi] = c[vi] + a[vi]


def _add(args: Sequence[int], n: int = N, more: float = 0.0) -> None:
    a, b, c = (array(word(address), N) for address in args)
    c[:n] = a[:n] + b[:n] + np.float32(more)


def _accumulate(args: Sequence[int]) -> None:
    a, c = (array(word(address), N) for address in args)
    c += a


def _square_root(a: np.ndarray) -> np.ndarray:
    with np.errstate(invalid="ignore"):
        return np.sqrt(a)


_root, _both = computing(_square_root, N), computing(lambda a: a + a, N, np.int32)


KERNELS = {
    "right": _add,
    "wrong": lambda args: _add(args, more=1.0),
    "partial": lambda args: _add(args, n=N - 4),
    "refused": _add,
    "crash": lambda args: 700,
    "accumulate": _accumulate,
    "both": _both,
    "nothing": lambda args: None,
}


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> Bench:
    def spacious(args: Sequence[int]) -> int | None:
        """Adds if its workspace is memory that it may use."""
        _add(args[:3])
        return None if word(args[3]) in made.driver.memory else 700

    kernels = {**KERNELS, "spacious": spacious, "main_kernel": _add}
    made = Bench.make(monkeypatch, tmp_path, kernels)
    inputs = reference.inputs

    def noted(*args: Any, **kwargs: Any) -> Any:
        made.driver.log.append("inputs")
        return inputs(*args, **kwargs)

    monkeypatch.setattr(reference, "inputs", noted)
    return made


# ---------------------------------------------------------------- who has the device


def test_nothing_is_done_on_the_device_before_others_are_kept_off(bench: Bench) -> None:
    def split() -> tuple[list[str], list[str]]:
        at = bench.driver.log.index("quiet")
        before, after = bench.driver.log[:at], bench.driver.log[at + 1 :]
        bench.driver.log.clear()
        return before, after

    folder = bench.prepare(add)
    before, after = split()
    assert before == ["compile", "compile", "inputs"]  # the reference, the helpers
    assert "cuDevicePrimaryCtxRetain" in after and "cuMemcpyHtoDAsync_v2" in after
    assert "compile" not in after and "inputs" not in after
    assert bench.run(folder, "right")["latencies_us"]
    assert split()[0] == []  # the arguments are still known
    bench.fresh()
    assert bench.run(folder, "right")["latencies_us"]
    before, after = split()
    assert before == ["inputs"]
    assert "cuDevicePrimaryCtxRetain" in after and "compile" not in after


# ---------------------------------------------------------------- opening


def test_opening_uses_all_that_a_run_does_after_others_are_kept_off(bench: Bench) -> None:
    assert bench.runner.open("sm_90") == {}
    at = bench.driver.log.index("quiet")
    assert bench.driver.log[:at] == ["compile"]
    opened = set(bench.driver.log[at:])
    folder = bench.prepare(add)
    del bench.driver.log[:]
    assert bench.run(folder, "right")["latencies_us"]
    of_candidates = {"quiet", "cuModuleUnload"}  # the helpers stay
    assert set(bench.driver.log) - of_candidates <= opened


def test_a_gpu_whose_results_are_wrong_is_no_use(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(bench.driver.kernels, "felix_compare", lambda args: None)
    with pytest.raises(errors.MeasureError, match="wrong"):
        bench.runner.open("sm_90")


def test_opening_says_what_the_driver_refuses(bench: Bench) -> None:
    bench.driver.capacity = 0
    with pytest.raises(cuda_driver.DriverError, match="OUT_OF_MEMORY in cuMemAlloc_v2"):
        bench.runner.open("sm_90")


# ---------------------------------------------------------------- checks


def test_a_probe_is_timed_behind_another_one(bench: Bench) -> None:
    """So that the host's launch is over when its first event comes."""
    bench.run(bench.prepare(add), "right")
    helpers = bench.runner._open().helpers
    del bench.driver.log[:]
    assert helpers.probe_us() == pytest.approx(40.0)
    launch, event = "cuLaunchKernel", "cuEventRecord"
    calls = [call for call in bench.driver.log if call in (launch, event)]
    assert calls == [launch, event, launch, event]


def test_a_right_candidate_is_checked_and_timed(bench: Bench) -> None:
    bench.driver.durations_us["right"] = 12.0
    reply = bench.run(bench.prepare(add), "right")
    assert set(reply) == {"latencies_us"}
    assert reply["latencies_us"] == pytest.approx([12.0] * len(reply["latencies_us"]), rel=1e-3)
    assert len(reply["latencies_us"]) >= timing.GPU.min_repeats


@pytest.mark.parametrize("n_launches", [1, 3, 400])
def test_warm_calls_are_queued_before_the_first_of_them_runs(
    bench: Bench, n_launches: int
) -> None:
    """A stream takes 1,024 launches; what the host launches later would be in the times."""
    driver = bench.driver

    def alternating(args: Sequence[int]) -> None:
        driver.durations_us["right"] = 2.0 + 2.0 * (len(driver.launched) // 700 % 2)
        _add(args)

    driver.kernels["right"] = alternating
    warm = timing.TimingOptions(
        flush=False, max_repeats=2, min_repeats=2, min_repeat_ms=5, max_total_s=60.0
    )
    folder = bench.prepare(add)
    del driver.log[:], driver.launched[:]
    reply = bench.run(folder, "right", timed=warm, n_launches=n_launches)
    assert len(reply["latencies_us"]) == 2
    for latency_us in reply["latencies_us"]:  # of bundles of 2 and 4 us a launch
        assert 2.2 * n_launches < latency_us < 3.8 * n_launches
    calls = driver.launched.count("right") / n_launches
    assert 2 * 5_000 <= calls * 4.0 * n_launches and calls * 2.0 * n_launches <= 3 * 5_000
    names = iter(driver.launched)
    for stretch in " ".join(driver.log).split("cuStreamSynchronize"):
        launched = [next(names) for _ in range(stretch.count("cuLaunchKernel"))]
        assert len(launched) < 1024
        if launched.count("right") > n_launches:  # a bundle; a delay of 10 us a launch comes first
            ahead = launched[: launched.index("right")].count("felix_probe")
            assert ahead * driver.durations_us["felix_probe"] >= 10.0 * launched.count("right")


def test_an_early_stopped_candidate_is_run_once(bench: Bench) -> None:
    bench.driver.durations_us["right"] = 300_000.0
    reply = bench.run(bench.prepare(add), "right", best_us=12.0)
    assert reply["latencies_us"] == pytest.approx([300_000.0])
    assert bench.driver.launched.count("right") == 1


def test_a_first_run_that_the_host_may_have_held_up_is_not_believed(bench: Bench) -> None:
    bench.driver.durations_us["right"] = 30_000.0
    reply = bench.run(bench.prepare(add), "right", best_us=12.0)
    assert reply["latencies_us"] == pytest.approx([30_000.0] * timing.GPU.early_stop_repeats)
    assert bench.driver.launched.count("right") == 1 + timing.GPU.early_stop_repeats


@pytest.mark.parametrize(
    ("kernel", "message"), [("wrong", "64 of 64"), ("partial", "4 of 64"), ("nothing", "64 of 64")]
)
def test_a_wrong_output_is_told_and_costs_the_worker(
    bench: Bench, kernel: str, message: str
) -> None:
    folder = bench.prepare(add)
    assert bench.run(folder, "right")["latencies_us"]  # the outputs hold what is right
    reply = bench.run(folder, kernel)
    assert reply["error"] == protocol.ErrorClass.WRONG_RESULT and not reply["reusable"]
    assert "output c" in reply["message"] and message in reply["message"]


def test_integers_nobody_wrote_are_seen(bench: Bench) -> None:
    bench.driver.kernels["main_kernel"] = _both
    folder = bench.prepare(both)
    assert bench.run(folder, "both", n_params=2)["latencies_us"]
    assert bench.run(folder, "nothing", n_params=2)["error"] == protocol.ErrorClass.WRONG_RESULT


def test_what_a_run_changes_is_as_before_for_the_next_candidate(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    launch = launch_plan.Launch("accumulate", (1, 1, 1, N, 1, 1), 0, (0, 1))
    program = launch_plan.LaunchPlan(2, (), (launch,)), b"cubin"
    monkeypatch.setattr(cuda_reference, "program", lambda mod, target: program)
    folder = bench.prepare(accumulate)
    for _ in range(2):  # each of which runs it many times
        assert bench.run(folder, "accumulate", n_params=2)["latencies_us"]


def test_inputs_are_positive_where_the_reference_needs_it(bench: Bench) -> None:
    bench.driver.kernels |= {"main_kernel": _root, "right": _root}
    folder = bench.prepare(root)
    assert bench.driver.log.count("inputs") == 2
    bench.fresh()
    assert bench.run(folder, "right", n_params=2)["latencies_us"]


@pytest.mark.parametrize(
    ("text", "limit"),
    [("elementwise:64x64,ops=tanh", 1.5e-3), ("softmax:8x64", 2e-5), ("gemm:16,16,16", 0.0)],
)
def test_tolerance_is_wider_where_fast_math_approximates(text: str, limit: float) -> None:
    mod = workloads.parse(text, target="h200").mod
    assert cuda_reference.tolerance(mod) == max(limit, task_program.tolerance(mod))


def test_outputs_and_workspaces_hold_nothing_useful_before_the_check(bench: Bench) -> None:
    poisoned: list[bool] = []

    def spacious(args: Sequence[int]) -> None:
        poisoned.append(all(np.isnan(array(word(args[i]), N)).all() for i in (2, 3)))
        _add(args[:3])
        array(word(args[3]), N)[:] = 0

    bench.driver.kernels["spacious"] = spacious
    folder = bench.prepare(add)
    for _ in range(2):
        poisoned.clear()
        assert bench.run(folder, "spacious", workspaces=(_N_BYTES,))["latencies_us"]
        assert poisoned[0] and not any(poisoned[1:])


# ---------------------------------------------------------------- whose fault an error is


def test_a_refused_launch_leaves_the_worker_usable(bench: Bench) -> None:
    folder = bench.prepare(add)
    bench.driver.refused.add("refused")
    reply = bench.run(folder, "refused")
    assert reply["error"] == protocol.ErrorClass.LAUNCH and reply["reusable"]
    assert "LAUNCH_OUT_OF_RESOURCES" in reply["message"]
    assert bench.run(folder, "right")["latencies_us"]


def test_a_crash_costs_the_worker_and_is_told(bench: Bench) -> None:
    reply = bench.run(bench.prepare(add), "crash")
    assert reply["error"] == protocol.ErrorClass.LAUNCH and not reply["reusable"]
    assert "ILLEGAL_ADDRESS" in reply["message"]
    assert bench.driver.log.count("cuModuleUnload") == 1  # that of the reference


def test_a_device_too_full_for_the_task_is_not_the_candidates_fault(bench: Bench) -> None:
    folder = bench.prepare(add)
    used = sum(map(len, bench.driver.memory.values()))
    bench.driver.capacity = used + 2 * _N_BYTES
    reply = bench.run(folder, "right")
    assert reply["error"] == protocol.ErrorClass.INFRASTRUCTURE and not reply["reusable"]
    assert "OUT_OF_MEMORY" in reply["message"]


def test_workspaces_are_the_candidates_own_fault(bench: Bench) -> None:
    folder = bench.prepare(add)
    assert bench.run(folder, "spacious", workspaces=(_N_BYTES,))["latencies_us"]
    reply = bench.run(folder, "spacious", workspaces=(1 << 30,))
    assert reply["error"] == protocol.ErrorClass.LAUNCH and reply["reusable"]
    assert "OUT_OF_MEMORY" in reply["message"]
    # its workspace went before there was a larger one: the next candidate gets one of its own
    assert bench.run(folder, "spacious", workspaces=(_N_BYTES,))["latencies_us"]


def test_another_task_gets_the_memory_of_the_one_before(bench: Bench) -> None:
    first, second = bench.prepare(add), bench.prepare(add, 1)
    resident = sum(map(len, bench.driver.memory.values()))
    assert bench.run(first, "spacious", workspaces=(8 * _N_BYTES,))["latencies_us"]
    bench.driver.capacity = resident + 4 * _N_BYTES  # tensors and an expected output
    assert bench.run(second, "right")["latencies_us"]
    assert sum(map(len, bench.driver.memory.values())) == bench.driver.capacity
