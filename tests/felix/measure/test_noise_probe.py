"""Devices whose noise probe is slow rest, and work again when it is not."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import tvm

from felix.measure import local, noise_probe, work
from felix.runner import protocol
from tests.felix.measure import contract
from tests.felix.measure import test_several_devices as several
from tests.support import pool_programs as programs
from tests.support import waiting

Make = Callable[..., several.Pool]


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AGAIN_S", "LOOK_S", "IDLE_S"):
        monkeypatch.setattr(noise_probe, name, 0.01)


@pytest.fixture
def make(ends: several.Ends) -> Make:
    """Makes stages with a noise probe, which is armed."""

    def made(*runs: several.Runner) -> several.Pool:
        watch = noise_probe.NoiseProbe("cuda")
        pool = several.Pool(*runs, watch=watch)
        watch.arm(pool.task(), "probe.so")
        pool.start()
        ends.callback(pool.close)
        return pool

    return made


def test_a_device_that_becomes_slow_rests_until_it_is_not(make: Make) -> None:
    good, throttled = several.Runner(), several.Runner()
    pool = make(good, throttled)
    waiting.until(lambda: "noise-probe" in good.ran and "noise-probe" in throttled.ran)
    assert pool.queues.away == {}
    throttled.slowness = 1.8
    waiting.until(lambda: pool.queues.away != {})
    assert pool.queues.away == {
        1: "its noise probe takes 1.8 times as long as before: it is throttled or busy"
    }
    throttled.ran.clear()
    task = pool.task()
    pool.submit(task).result(10)
    results = several._results([pool.submit(task, "job") for _ in range(20)])
    assert [each.latency_us for each in results] == [10.0] * 20
    assert set(throttled.ran) <= {"noise-probe"} and good.ran.count("job") == 20
    throttled.slowness = 1.0
    waiting.until(lambda: pool.queues.away == {})


def test_a_device_that_is_slower_than_its_kind_never_measures(make: Make) -> None:
    runs = [several.Runner(1.0), several.Runner(1.1), several.Runner(1.9)]
    pool = make(*runs)
    waiting.until(lambda: 2 in pool.queues.away)
    assert "1.7 times as long as on others of its kind" in pool.queues.away[2]
    waiting.until(
        lambda: runs[0].ran.count("noise-probe") > 5 and runs[1].ran.count("noise-probe") > 5
    )
    assert set(pool.queues.away) == {2}


def test_what_waits_for_the_only_device_waits_until_it_is_well(make: Make) -> None:
    only = several.Runner()
    pool = make(only)
    waiting.until(lambda: "noise-probe" in only.ran)
    only.slowness = 3.0
    waiting.until(lambda: pool.queues.lost is not None)
    assert "3.0 times as long" in str(pool.queues.lost)
    held = pool.submit(pool.task(), "job")
    only.ran.clear()
    waiting.until(lambda: only.ran.count("noise-probe") > 5)
    assert not held.done()
    only.slowness = 1.0
    assert held.result(10).latency_us == 10.0


def test_busy_devices_are_looked_at_after_some_candidates(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(noise_probe, "IDLE_S", 1e6)
    monkeypatch.setattr(noise_probe, "EVERY_N", 5)
    only = several.Runner()
    pool = make(only)
    waiting.until(lambda: only.ran.count("noise-probe") == noise_probe.N_RUNS)  # when it opens
    task = pool.task()
    several._results([pool.submit(task, "job") for _ in range(20)])
    waiting.until(lambda: only.ran.count("noise-probe") == 5 * noise_probe.N_RUNS)


def test_a_noise_probe_without_a_latency_says_nothing() -> None:
    watch = noise_probe.NoiseProbe("cpu")
    state = work.TaskState(several.GPU, "", work.Reference())
    watch.arm(work.PoolTask(0, [state]), "probe.so")
    results: Iterator[float | None] = iter([])

    def run(candidate: work.QueuedProgram, state: work.TaskState) -> protocol.Measurement:
        latency_us = next(results, None)
        if latency_us is None:
            return candidate.failed(protocol.ErrorClass.LAUNCH, "crashed")
        return protocol.Measurement.timed([latency_us])

    def fault(*latencies_us: float | None) -> str | None:
        nonlocal results
        results = iter(latencies_us)
        return watch.fault(0, run)

    assert fault(10.0, None, 12.0) is None
    assert fault(None, None, None) is None
    assert fault(41.0, 39.0, 50.0) is None  # the fastest counts
    assert "4.1 times as long as before" in str(fault(41.0, None, 60.0))


def test_a_real_pool_times_its_noise_probe() -> None:
    options = work.LocalOptions(builders=1, noise_probe=True)
    with local.LocalPool(contract.task(), options) as pool:
        watch = pool._stages[0]._watch
        assert watch is not None
        waiting.until(lambda: watch._best_us.get(0) is not None)
        assert watch._best_us[0] > 1.0
        assert pool.measure([tvm.IRModule({"main": programs.gemm})])[0].ok
        (condition,) = pool.conditions()
    assert condition.place == "cpu:0" and condition.n_measured >= 2 and condition.n_failed == 0
