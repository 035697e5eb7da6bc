"""When timing stops, by a library with scripted latencies; the guard of contended cores; the
read-write lock."""

from __future__ import annotations

import dataclasses
import itertools
import threading
import time
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tvm

from felix import target
from felix.measure import locks
from felix.runner import protocol, timing
from felix.runner.calls import cpu_calls
from felix.runner.cpu import contention
from felix.runner.cpu import timing as cpu_timing
from tests.support.function_measurer import FunctionMeasurer

OPTIONS = timing.TimingOptions(min_total_s=0.0, leader_error=1.0)


@dataclasses.dataclass
class FakeLibrary:
    """Stands in for a runtime module: each repeat takes the next of `latencies_us`."""

    latencies_us: Iterable[float]
    settings: list[dict[str, Any]] = dataclasses.field(default_factory=list)

    def __post_init__(self) -> None:
        self._next = iter(self.latencies_us)

    def time_evaluator(self, name: str, device: Any, **settings: Any) -> Callable[..., Any]:
        self.settings.append(settings)
        repeat = settings["repeat"]

        def timer(*args: Any) -> Any:
            results = [next(self._next) * 1e-6 for _ in range(repeat)]
            return dataclasses.make_dataclass("Result", ["results"])(results)

        return timer


def _time(
    latencies_us: Iterable[float],
    options: timing.TimingOptions = OPTIONS,
    *,
    first_us: float = 10.0,
    best_us: float | None = None,
) -> tuple[list[float], FakeLibrary]:
    library = FakeLibrary(latencies_us)
    times_us = cpu_timing.latencies(
        library, tvm.cpu(), [], options, flush="flush", first_us=first_us, best_us=best_us
    )
    return times_us, library


def test_an_early_stopped_slow_candidate_is_its_first_call() -> None:
    times_us, library = _time([], first_us=50_000.0, best_us=100.0)
    assert times_us == [50_000.0] and not library.settings


def test_one_slow_call_does_not_stop_a_candidate_early() -> None:
    disturbed = itertools.chain([70_000.0], itertools.repeat(12.0))
    times_us, _ = _time(disturbed, timing.GPU, first_us=70_000.0, best_us=10.0)
    assert len(times_us) > timing.GPU.early_stop_repeats
    assert times_us == pytest.approx([12.0] * len(times_us))


def test_a_call_that_was_held_up_uses_up_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 0.0

    def sample(repeat: int) -> list[float]:
        nonlocal now_s
        times_us = [300_000.0 if now_s == 0 and n == 0 else 12.0 for n in range(repeat)]
        now_s += sum(times_us) / 1e6
        return times_us

    monkeypatch.setattr(timing, "time", SimpleNamespace(perf_counter=lambda: now_s))
    times_us = timing.adaptive(sample, timing.GPU, 12.0, 10.0)
    assert len(times_us) >= timing.GPU.min_repeats and times_us == [12.0] * len(times_us)


@pytest.mark.parametrize("held_up", range(3))
def test_an_early_stopped_candidate_keeps_its_latency(held_up: int) -> None:
    calls = [80.0] * timing.GPU.early_stop_repeats
    calls[held_up] = 70_000.0
    times_us, _ = _time(calls, timing.GPU, best_us=10.0)
    assert np.median(times_us) == pytest.approx(80.0)


def test_early_stop_ratio_and_repeats_are_options() -> None:
    options = dataclasses.replace(OPTIONS, early_stop_ratio=2.0, early_stop_repeats=2)
    times_us, _ = _time(itertools.repeat(30.0), options, best_us=10.0)
    assert len(times_us) == 2
    options = dataclasses.replace(options, early_stop_first_s=1e-6)
    times_us, _ = _time([], options, first_us=30.0, best_us=10.0)
    assert times_us == [30.0]


def test_min_and_max_repeats() -> None:
    times_us, _ = _time(itertools.repeat(30.0), best_us=10.0)
    assert len(times_us) == OPTIONS.min_repeats
    options = dataclasses.replace(OPTIONS, min_total_s=1.0, max_repeats=12, max_total_s=1e3)
    times_us, _ = _time(itertools.repeat(30.0), options)
    assert len(times_us) == 12
    options = dataclasses.replace(OPTIONS, min_total_s=300e-6, max_total_s=1e3)
    times_us, _ = _time(itertools.repeat(10.0), options)
    assert sum(times_us) == pytest.approx(300.0)


def test_max_total_bounds_the_wall_time() -> None:
    def slow() -> Iterable[float]:
        while True:
            time.sleep(0.02)
            yield 10.0

    options = dataclasses.replace(OPTIONS, min_repeats=50, max_total_s=0.1)
    times_us, _ = _time(slow(), options)
    assert 1 <= len(times_us) < 10  # of 50 that are asked for


def test_a_noisy_leader_gets_more_repeats_than_a_noisy_loser() -> None:
    noisy = [10.0, 12.0, 14.0, 16.0, 18.0]
    options = dataclasses.replace(OPTIONS, leader_error=0.05, max_total_s=1e3)
    leader, _ = _time(itertools.cycle(noisy), options)
    loser, _ = _time(itertools.cycle(noisy), options, best_us=5.0)
    assert len(loser) == options.min_repeats < len(leader)
    wider = dataclasses.replace(options, leader_ratio=3.0)
    assert len(_time(itertools.cycle(noisy), wider, best_us=5.0)[0]) > len(loser)


def test_who_could_lead_if_the_machine_were_slow() -> None:
    options = dataclasses.replace(OPTIONS, leader_ratio=1.1)
    assert timing.could_lead([90.0], options, None, slowdown=2.0)
    assert timing.could_lead([21.0, 22.0, 90.0], options, 10.0, slowdown=2.0)
    assert not timing.could_lead([23.0], options, 10.0, slowdown=2.0)
    assert timing.could_lead([90.0], options.burst(), 10.0, slowdown=2.0)


def test_flush_is_one_cold_call_a_repeat_and_warm_is_bundled() -> None:
    _, library = _time(itertools.repeat(10.0))
    assert all(s["number"] == 1 and s["f_preproc"] for s in library.settings)
    warm = dataclasses.replace(OPTIONS, flush=False, min_repeat_ms=7)
    _, library = _time(itertools.repeat(10.0), warm)
    assert all(s["min_repeat_ms"] == 7 and "f_preproc" not in s for s in library.settings)


def test_flushed_kernel_is_slower_than_a_warm_one() -> None:
    n = 1 << 18
    a = tvm.te.placeholder((n,), name="a")
    c = tvm.te.compute((n,), lambda i: a[i] + 1.0, name="c")
    library = tvm.tirx.build(tvm.IRModule({"main": tvm.te.create_prim_func([a, c])}), "llvm")
    tensors = [tvm.runtime.tensor(np.ones(n, "float32")) for _ in range(2)]
    flusher, fastest = cpu_timing.flush(1 << 25), {}  # other work slows some of the repeats
    for flush in (True, False):
        options = timing.TimingOptions(flush=flush, min_repeat_ms=1, max_total_s=0.3)
        times_us = cpu_timing.latencies(
            library, tvm.cpu(), tensors, options, flush=flusher, first_us=1.0, best_us=None
        )
        fastest[flush] = min(times_us)
    assert fastest[True] > 1.2 * fastest[False]


def test_measurement_is_a_latency_or_an_error() -> None:
    timed = protocol.Measurement.timed([3.0, 1.0, 2.0, 4.0, 5.0])
    assert timed.latency_us == 3.0 and timed.spread == pytest.approx(2 / 3) and timed.ok
    assert protocol.Measurement.timed([3.0]).spread is None
    with pytest.raises(ValueError, match="latency or an error"):
        protocol.Measurement()
    with pytest.raises(ValueError, match="latency or an error"):
        protocol.Measurement(latency_us=1.0, error=protocol.ErrorClass.BUILD)


def test_function_measurer_answers_and_remembers() -> None:
    mods = [tvm.IRModule(), tvm.IRModule()]
    answers = iter([2.5, protocol.ErrorClass.LAUNCH])
    with FunctionMeasurer(lambda mod: next(answers)) as measurer:
        good, bad = measurer.measure(mods)
    assert good.latency_us == 2.5 and bad.error is protocol.ErrorClass.LAUNCH
    assert measurer.submitted == mods


def test_the_lock_keeps_computing_and_timing_apart() -> None:
    lock = locks.ReadWriteLock()
    log: list[str] = []

    def compute() -> None:
        for _ in range(200):
            with lock.shared():
                log.append("in")
                log.append("out")

    threads = [threading.Thread(target=compute) for _ in range(2)]
    for thread in threads:
        thread.start()
    for _ in range(20):
        lock.acquire()
        before = len(log)
        time.sleep(0.001)
        assert len(log) == before
        lock.release()
    for thread in threads:
        thread.join()
    assert len(log) == 800


# Waiting for cores at full speed, with a probe that is told what to say.


class _Cores:
    """Cores whose speed follows a script: one value of the probe, in us, for each look at them."""

    def __init__(self, *script: float) -> None:
        self.script = list(script)
        self.calls = 0
        self.pauses: list[float] = []

    def probe(self) -> float:
        """The script's next value every `_CALLS` calls; the last one for ever."""
        value = self.script[min(self.calls // contention._CALLS, len(self.script) - 1)]
        self.calls += 1
        return value


def _guarded(*script: float) -> tuple[_Cores, contention.ContentionGuard]:
    cores = _Cores(*script)
    return cores, contention.ContentionGuard(
        cores.probe, cores.pauses.append, patience=2, _full_us=50.0
    )


def _measure(calls: list[int]) -> Callable[[], list[float]]:
    def measure() -> list[float]:
        calls.append(1)
        return [float(len(calls))]

    return measure


def test_at_full_speed_nothing_waits() -> None:
    cores, guard = _guarded(55.0)
    assert guard.measure_stable(_measure([])) == [1.0]
    assert cores.pauses == []


@pytest.mark.parametrize(
    ("script", "n_measured"),
    [
        ((100.0, 50.0, 100.0, 100.0, 50.0), 1),
        ((*6 * [100.0], 50.0), 2),
        ((50.0, *6 * [100.0], 50.0), 2),
    ],
    ids=["a moment is no phase", "its end is waited for", "what it slowed is timed again"],
)
def test_timing_waits_for_a_slow_phase(script: tuple[float, ...], n_measured: int) -> None:
    cores, guard = _guarded(*script)
    assert guard.measure_stable(_measure([])) == [n_measured]
    assert cores.pauses.count(guard.pause_s) == n_measured - 1


def test_what_cannot_lead_waits_for_nothing() -> None:
    cores, guard = _guarded(100.0)
    decided_on: list[list[float]] = []

    def decides(latencies_us: list[float]) -> bool:
        decided_on.append(latencies_us)
        return False

    assert guard.measure_stable(_measure([]), decides) == [1.0]
    assert decided_on == [[1.0]] and guard.pause_s not in cores.pauses


def test_what_lasts_is_no_disturbance() -> None:
    cores, guard = _guarded(100.0)
    assert guard.measure_stable(_measure([])) == [2.0]
    assert cores.pauses.count(guard.pause_s) == guard.patience
    assert guard.measure_stable(_measure([])) == [1.0]
    assert cores.pauses.count(guard.pause_s) == guard.patience, "it waited for what does not end"
    cores.script, cores.calls = [50.0, *3 * [100.0], 50.0], 0
    assert guard.measure_stable(_measure([])) == [2.0], "the full speed, once seen, counts again"


def test_the_first_look_is_several() -> None:
    cores, guard = _guarded(100.0, 50.0, 100.0, 50.0)
    guard._full_us = None
    guard.learn()
    assert guard._full_us == 50.0 and len(cores.pauses) == guard.patience


@pytest.mark.parametrize("threads", [1, 2])
def test_the_probe_takes_microseconds(threads: int) -> None:
    probe = contention.multiply_adds(target.parse("llvm"), threads)
    probe()
    assert 1.0 < min(probe() for _ in range(20)) < 5_000.0


# Calls that are timed in turns.


def test_a_call_without_hope_has_one_turn() -> None:
    calls = {"fast": lambda: time.sleep(0.001), "slow": lambda: time.sleep(0.02)}
    latencies_us = cpu_calls.in_turns_us(calls, [], turns=3, burst=2, max_ratio=2.0)
    assert {name: len(each) for name, each in latencies_us.items()} == {"fast": 6, "slow": 2}
    latencies_us = cpu_calls.in_turns_us(calls, [], turns=3, burst=2)
    assert {name: len(each) for name, each in latencies_us.items()} == {"fast": 6, "slow": 6}


def test_equal_calls_contend_to_the_end() -> None:
    assert timing.left_in_turns({"a": [], "b": []}, 2.0) == ["a", "b"]
    assert timing.left_in_turns({"a": [1.0, 9.0, 1.0], "b": [1.9, 1.9]}, 2.0) == ["a", "b"]
    assert timing.left_in_turns({"a": [1.0, 1.0], "b": [900.0, 1.5, 900.0]}, 2.0) == ["a", "b"]
    assert timing.left_in_turns({"a": [1.0], "b": [2.1]}, 2.0) == ["a"]
