"""The guard against a GPU's clock that sinks, on a device of which only the clock exists."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from felix.runner.cuda import timing

PROBE_US = 40.0
TIMING_S = 0.002


class Device:
    """Stands for the helper kernels; `slowdown` is a function of the seconds it has worked."""

    def __init__(self, slowdown: Callable[[float], float] = lambda now_s: 1.0) -> None:
        self.now_s = 0.0
        self.slowdown = slowdown
        self.n_timed = 0

    def probe_us(self) -> float:
        self.delay(2)  # one goes ahead of the one that is timed
        return PROBE_US * self.slowdown(self.now_s)

    def delay(self, count: int) -> None:
        for _ in range(count):
            self.now_s += PROBE_US * self.slowdown(self.now_s) / 1e6

    def measure(self) -> list[float]:
        """A candidate's repeats, told apart by their number."""
        self.now_s += TIMING_S
        self.n_timed += 1
        return [float(self.n_timed)]


def constant(slowdown: float) -> Callable[[float], float]:
    return lambda now_s: slowdown


def _guard(device: Device) -> timing.ClockGuard:
    return timing.ClockGuard(device, now=lambda: device.now_s)


def _known() -> tuple[Device, timing.ClockGuard]:
    """A device at full clock, and its guard after the first candidate."""
    device = Device()
    guard = _guard(device)
    guard.measure_stable(device.measure)
    return device, guard


def _spent_s(device: Device, guard: timing.ClockGuard) -> float:
    """Time of the device for one candidate, beside that for its repeats."""
    before_s, n_timed = device.now_s, device.n_timed
    guard.measure_stable(device.measure)
    return device.now_s - before_s - TIMING_S * (device.n_timed - n_timed)


def test_at_full_clock_a_look_before_and_after_is_all_it_costs() -> None:
    device = Device()
    guard = _guard(device)
    assert _spent_s(device, guard) < 0.01  # learns how fast it can be
    two_looks = 2 * 3 * 2  # at three probes, each behind another one
    assert _spent_s(device, guard) < (two_looks + 1) * PROBE_US / 1e6
    assert device.n_timed == 2


def test_a_cold_device_is_warmed_up_until_it_gets_no_faster() -> None:
    device = Device(lambda now_s: max(1.0, 4.0 - 100 * now_s))  # 30 ms
    guard = _guard(device)
    guard.measure_stable(device.measure)
    assert 0.03 < device.now_s - TIMING_S < 0.05
    assert device.n_timed == 1


def test_a_clock_that_sank_while_idle_is_waited_for() -> None:
    device, guard = _known()
    back_s = device.now_s + 0.02
    device.slowdown = lambda now_s: 1.3 if now_s < back_s else 1.0
    assert guard.measure_stable(device.measure) == [2.0]
    assert back_s < device.now_s - TIMING_S < back_s + 0.002


def test_what_lasts_is_not_waited_for_each_time() -> None:
    """A limit on power: the clock is 13 % lower from now on."""
    device, guard = _known()
    device.slowdown = lambda now_s: 1.13
    spent = [_spent_s(device, guard) for _ in range(20)]
    assert sum(seconds > 0.04 for seconds in spent) == 3
    assert all(seconds < 0.001 for seconds in spent[3:])
    assert device.n_timed == 21  # a clock that is the same before and after disturbs nothing
    device.slowdown = lambda now_s: 1.0  # the limit is gone, and comes back
    assert _spent_s(device, guard) < 0.001
    device.slowdown = lambda now_s: 1.13
    assert _spent_s(device, guard) > 0.04


def test_one_slow_phase_is_no_reason_to_take_less_for_full() -> None:
    device, guard = _known()
    for _ in range(5):
        for slowdown in (1.13, 1.13, 1.0):  # too slow twice, never three times in a row
            device.slowdown = constant(slowdown)
            spent_s = _spent_s(device, guard)
            assert (spent_s > 0.04) == (slowdown > 1)


@pytest.mark.parametrize("sunk", [1.1, 0.9])
def test_repeats_during_which_the_clock_changed_are_timed_once_more(sunk: float) -> None:
    device, guard = _known()
    at_s = device.now_s + TIMING_S / 2
    device.slowdown = lambda now_s: 1.0 if now_s < at_s else sunk
    assert guard.measure_stable(device.measure) == [3.0]
    assert device.n_timed == 3


def test_repeats_are_timed_once_more_at_most() -> None:
    device, guard = _known()
    device.slowdown = lambda now_s: 1 + now_s  # sinks for good, 0.2 % a repeat
    device.now_s = 1.0
    repeats: list[list[float]] = []

    def measure() -> list[float]:
        device.now_s += 0.2
        repeats.append(device.measure())
        return repeats[-1]

    assert guard.measure_stable(measure) == repeats[-1]
    assert len(repeats) == 2


def test_what_decides_nothing_is_not_timed_again() -> None:
    device, guard = _known()
    at_s = device.now_s + TIMING_S / 2
    device.slowdown = lambda now_s: 1.0 if now_s < at_s else 1.1
    changes: list[float] = []

    def decides(latencies_us: list[float], change: float) -> bool:
        changes.append(change)
        return False

    assert guard.measure_stable(device.measure, decides) == [2.0]
    assert changes == pytest.approx([1.1])
