"""How many times a candidate is timed: the same rule for every device.

`cpu.timing` and `cuda.timing` time one repeat; here is when repeats stop.

One repeat is one call that starts with cold data. The caches are emptied between repeats, outside
the timed part, so a second call in the same repeat would be a warm one and the average something
that is neither. With `flush=False`, repeats are bundles of warm calls that last `min_repeat_ms`.

Repeats: a candidate that is slower than `early_stop_ratio` times the best so far is early-stopped:
it gets `early_stop_repeats` if all of them are so slow, and if its first call took over
`early_stop_first_s`, that call is its time. Others run until `min_total_s` of kernel time and
`min_repeats`, at most `max_repeats` and `max_total_s`; one within `leader_ratio` of the best goes
on until the standard error of its median is about `leader_error` or a maximum is reached.

Bursts: candidates that decide a run are timed in turns, `burst()` after burst over seconds, so
that a machine that drifts treats all alike; the median of all repeats counts.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TypeVar

from felix.runner import protocol


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TimingOptions:
    """When timing one candidate stops; see the module docstring."""

    flush: bool = True
    min_repeats: int = 5
    max_repeats: int = 100
    min_total_s: float = 0.01
    max_total_s: float = 0.15
    early_stop_ratio: float = 5.0
    early_stop_repeats: int = 3
    early_stop_first_s: float = 0.02
    leader_ratio: float = 1.1
    leader_error: float = 0.02
    min_repeat_ms: int = 5

    def burst(self) -> TimingOptions:
        """For one of several turns of a candidate that decides a run, whatever its rank."""
        return dataclasses.replace(
            self,
            min_repeats=2 * self.min_repeats,
            max_repeats=4 * self.min_repeats,
            max_total_s=min(0.1, self.max_total_s),
            leader_ratio=math.inf,
            leader_error=0.5 * self.leader_error,
        )


#: For GPUs: a repeat costs a sweep of the L2 (0.05 ms) and there is no scheduler to average out,
#: but a single launch can be held up for some 10 ms by a busy CPU.
GPU = TimingOptions(
    min_repeats=5, max_repeats=40, min_total_s=0.0005, max_total_s=0.25, early_stop_first_s=0.1
)


def adaptive(
    sample: Callable[[int], list[float]],
    options: TimingOptions,
    first_us: float,
    best_us: float | None,
) -> list[float]:
    """Latencies in us; `sample(n)` times n repeats, and the first call took `first_us`."""
    early_stop_us = math.inf if best_us is None else best_us * options.early_stop_ratio
    if first_us > early_stop_us and first_us > options.early_stop_first_s * 1e6:
        return [first_us]
    start_s = time.perf_counter()
    latencies_us = sample(1)
    if latencies_us[0] > early_stop_us:
        start_s = time.perf_counter()
        latencies_us += sample(max(options.early_stop_repeats - 1, 0))
        if min(latencies_us) > early_stop_us:
            return latencies_us
        # Something came between: a call that it held up says nothing about the candidate.
        latencies_us = [us for us in latencies_us if us <= early_stop_us]
    while len(latencies_us) < options.max_repeats:
        wall_s = time.perf_counter() - start_s
        count = _more_repeats(latencies_us, wall_s, options, best_us)
        if count == 0:
            break
        latencies_us += sample(count)
    return latencies_us


def could_lead(
    latencies_us: list[float], options: TimingOptions, best_us: float | None, slowdown: float
) -> bool:
    """Whether it may be within `leader_ratio` of the best, if timed `slowdown` times too slow."""
    limit_us = math.inf if best_us is None else best_us * options.leader_ratio
    return statistics.median(latencies_us) / slowdown <= limit_us


def _more_repeats(
    latencies_us: list[float], wall_s: float, options: TimingOptions, best_us: float | None
) -> int:
    """How many more repeats after these, which took `wall_s`; 0 to stop."""
    count = len(latencies_us)
    affordable = int((options.max_total_s - wall_s) / (wall_s / count))
    room = min(options.max_repeats - count, affordable)
    if room <= 0:
        return 0
    total_us = sum(latencies_us)
    missing = max(
        options.min_repeats - count,
        math.ceil((options.min_total_s * 1e6 - total_us) / (total_us / count)),
    )
    if missing > 0:
        return min(missing, room)
    median = sorted(latencies_us)[count // 2]
    if best_us is not None and median > best_us * options.leader_ratio:
        return 0
    # The median's standard error is about 0.93 * (interquartile range) / sqrt(n).
    spread = protocol.relative_spread(latencies_us) or 0.0
    enough = math.ceil((0.93 * spread / options.leader_error) ** 2)
    return min(max(enough - count, 0), room)


# Several calls that are timed in turns, and which of them have a further turn.

_Name = TypeVar("_Name", bound=Hashable)


def in_turns_us(
    bursts: Mapping[_Name, Callable[[], list[float]]], turns: int, max_ratio: float
) -> dict[_Name, list[float]]:
    """Latencies of calls in us: a burst of each call, then the next, so many turns.

    A call that took more than `max_ratio` times as long as the fastest one has no further turn.
    """
    latencies_us: dict[_Name, list[float]] = {name: [] for name in bursts}
    for _ in range(turns):
        for name in left_in_turns(latencies_us, max_ratio):
            latencies_us[name] += bursts[name]()
    return latencies_us


def left_in_turns(latencies_us: Mapping[_Name, Sequence[float]], max_ratio: float) -> list[_Name]:
    """Those that took no more than `max_ratio` times as long as the fastest one; all before the
    first turn.

    The best call of each counts: a busy moment of the machine ends nothing.
    """
    if not all(latencies_us.values()):
        return list(latencies_us)
    best_us = {name: min(each) for name, each in latencies_us.items()}
    limit_us = max_ratio * min(best_us.values())
    return [name for name, us in best_us.items() if us <= limit_us]
