"""How a kernel is timed, and when timing stops.

One repeat is one call (`number` = 1) that starts with cold data. The caches are emptied
between repeats, outside the timed part, so a second call in the same repeat would be a warm
one and the average something that is neither. The timer itself costs 0.03 us and an empty
two-thread kernel 3 us, so calls need not be bundled to be resolved; short kernels get more
repeats instead. With `flush=False`, repeats are bundles of warm calls lasting `min_repeat_ms`, on
a GPU the mean of several, none longer than its stream can queue at once.

Emptying: every argument (TVM's own helper spares the first) is flushed line by line from all
levels with `clflush`/`dc civac`. For a 12 MB working set that takes 0.4 ms where writing
through 64 MB takes 2.5 ms, gives the same latencies within 10 % and a spread a third as large
(the sweep leaves dirty lines that the kernel has to write back). On other CPUs, a buffer
twice the last-level cache is written. On a GPU, `cache_flush_bytes` are copied.

Repeats: a candidate that is slower than `hopeless_ratio` times the best so far gets
`hopeless_repeats` if all of them are so slow, and if its first call took over `hopeless_first_s`,
that call is its time. Others run until `min_total_s` of kernel time and `min_repeats`, at most
`max_repeats` and `max_total_s`; one within `leader_ratio` of the best goes on until the standard
error of its median is about `leader_error` or a maximum is reached.

Bursts: what decides is timed in turns with its rivals, `burst()` after burst over seconds, so that
a machine that drifts treats all alike; the median of all repeats counts.
"""

from __future__ import annotations

import dataclasses
import math
import platform
import statistics
import time
from collections.abc import Callable
from typing import Any

from felix.measure import protocol

#: CPUs on which TVM's flush helper does something.
_FLUSHABLE = ("x86_64", "amd64", "aarch64", "arm64")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TimingOptions:
    """When timing one candidate stops; see the module docstring."""

    flush: bool = True
    min_repeats: int = 5
    max_repeats: int = 100
    min_total_s: float = 0.01
    max_total_s: float = 0.15
    hopeless_ratio: float = 5.0
    hopeless_repeats: int = 3
    hopeless_first_s: float = 0.02
    leader_ratio: float = 1.1
    leader_error: float = 0.02
    min_repeat_ms: int = 5

    def burst(self) -> TimingOptions:
        """For one of several turns of a candidate that decides, of whatever rank."""
        return dataclasses.replace(
            self,
            min_repeats=2 * self.min_repeats,
            max_repeats=4 * self.min_repeats,
            max_total_s=min(0.1, self.max_total_s),
            leader_ratio=math.inf,
            leader_error=0.5 * self.leader_error,
        )


#: For GPUs: a repeat costs a sweep of the L2 (0.05 ms) and there is no scheduler to average out,
#: but while a single one is launched the host can be busy elsewhere for some 10 ms.
GPU = TimingOptions(
    min_repeats=5,
    max_repeats=40,
    min_total_s=0.0005,
    max_total_s=0.25,
    hopeless_first_s=0.1,
)


def latencies(
    library: Any,
    device: Any,
    args: list[Any],
    options: TimingOptions,
    *,
    cache_bytes: int,
    first_us: float,
    best_us: float | None,
) -> list[float]:
    """Latencies of the repeats in us; the kernel has been called once and took `first_us`."""
    sample = _sampler(library, device, args, options, cache_bytes)
    return adaptive(sample, options, first_us, best_us)


def adaptive(
    sample: Callable[[int], list[float]],
    options: TimingOptions,
    first_us: float,
    best_us: float | None,
) -> list[float]:
    """Latencies in us; `sample(n)` times n repeats, and the first call took `first_us`."""
    hopeless_us = math.inf if best_us is None else best_us * options.hopeless_ratio
    if first_us > hopeless_us and first_us > options.hopeless_first_s * 1e6:
        return [first_us]
    start_s = time.perf_counter()
    found = sample(1)
    if found[0] > hopeless_us:
        start_s = time.perf_counter()
        found += sample(max(options.hopeless_repeats - 1, 0))
        if min(found) > hopeless_us:
            return found
        # Something came between: what it held up says nothing about the candidate.
        found = [us for us in found if us <= hopeless_us]
    while len(found) < options.max_repeats:
        wall_s = time.perf_counter() - start_s
        more = _more(found, wall_s, options, best_us)
        if more == 0:
            break
        found += sample(more)
    return found


def could_lead(
    found: list[float], options: TimingOptions, best_us: float | None, slowed: float
) -> bool:
    """Whether it may be within `leader_ratio` of the best, if timed `slowed` times too slow."""
    limit_us = math.inf if best_us is None else best_us * options.leader_ratio
    return statistics.median(found) / slowed <= limit_us


def _more(found: list[float], wall_s: float, options: TimingOptions, best_us: float | None) -> int:
    """How many more repeats: a decision from what was seen, 0 to stop."""
    affordable = int((options.max_total_s - wall_s) / (wall_s / len(found)))
    room = min(options.max_repeats - len(found), affordable)
    if room <= 0:
        return 0
    total_us = sum(found)
    needed = max(
        options.min_repeats - len(found),
        math.ceil((options.min_total_s * 1e6 - total_us) / (total_us / len(found))),
    )
    if needed > 0:
        return min(needed, room)
    median = sorted(found)[len(found) // 2]
    if best_us is not None and median > best_us * options.leader_ratio:
        return 0
    # The median's standard error is about 0.93 * (interquartile range) / sqrt(n).
    spread = protocol.relative_spread(found) or 0.0
    enough = math.ceil((0.93 * spread / options.leader_error) ** 2)
    return min(max(enough - len(found), 0), room)


def _sampler(
    library: Any, device: Any, args: list[Any], options: TimingOptions, cache_bytes: int
) -> Callable[[int], list[float]]:
    settings: dict[str, Any] = {"number": 1}
    if not options.flush:
        settings["min_repeat_ms"] = options.min_repeat_ms
    elif device.dlpack_device_type() == 1:
        settings["f_preproc"] = _cpu_flush(cache_bytes)
    else:
        settings["cache_flush_bytes"] = 2 * cache_bytes

    def sample(repeat: int) -> list[float]:
        if repeat <= 0:
            return []
        timer = library.time_evaluator("main", device, repeat=repeat, **settings)
        return [seconds * 1e6 for seconds in timer(*args).results]

    return sample


def _cpu_flush(cache_bytes: int) -> str:
    """Register the flush for this process; returns its global name."""
    import numpy as np
    import tvm

    name = "felix.measure.flush"
    if tvm.get_global_func(name, allow_missing=True) is not None:
        return name
    if platform.machine().lower() in _FLUSHABLE:
        flush_all_but_first = tvm.get_global_func("cache_flush_cpu_non_first_arg")
        spared = tvm.runtime.tensor(np.zeros(1, "int32"))
        tvm.register_global_func(name, lambda *args: flush_all_but_first(spared, *args))
    else:
        sweep = np.zeros(2 * cache_bytes, dtype="int8")

        def write_all(*args: Any) -> None:
            np.add(sweep, 1, out=sweep)

        tvm.register_global_func(name, write_all)
    return name
