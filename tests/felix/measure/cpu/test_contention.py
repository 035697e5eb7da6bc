"""Waiting for cores at full speed, with a probe that is told what to say."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from felix import target
from felix.measure.cpu import timing


class _Cores:
    """Cores whose speed follows a script: one value of the probe, in us, for each look at them."""

    def __init__(self, *script: float) -> None:
        self.script = list(script)
        self.calls = 0
        self.pauses: list[float] = []

    def probe(self) -> float:
        """The script's next value every `_CALLS` calls; the last one for ever."""
        value = self.script[min(self.calls // timing._CALLS, len(self.script) - 1)]
        self.calls += 1
        return value


def _guarded(*script: float) -> tuple[_Cores, timing.ContentionGuard]:
    cores = _Cores(*script)
    return cores, timing.ContentionGuard(
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


def test_a_moment_is_no_phase() -> None:
    cores, guard = _guarded(100.0, 50.0, 100.0, 100.0, 50.0)
    assert guard.measure_stable(_measure([])) == [1.0]
    assert guard.pause_s not in cores.pauses


def test_timing_waits_for_a_slow_phase_to_end() -> None:
    cores, guard = _guarded(*6 * [100.0], 50.0)
    assert guard.measure_stable(_measure([])) == [2.0]
    assert cores.pauses.count(guard.pause_s) == 1


def test_what_cannot_lead_waits_for_nothing() -> None:
    cores, guard = _guarded(100.0)
    decided_on: list[list[float]] = []

    def decides(latencies_us: list[float]) -> bool:
        decided_on.append(latencies_us)
        return False

    assert guard.measure_stable(_measure([]), decides) == [1.0]
    assert decided_on == [[1.0]] and guard.pause_s not in cores.pauses


def test_what_was_slowed_meanwhile_is_timed_again() -> None:
    cores, guard = _guarded(50.0, *6 * [100.0], 50.0)
    assert guard.measure_stable(_measure([])) == [2.0]
    assert cores.pauses.count(guard.pause_s) == 1


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
    probe = timing.multiply_adds(target.parse("llvm"), threads)
    probe()
    assert 1.0 < min(probe() for _ in range(20)) < 5_000.0
