"""Timing of schedules that others built or chose, by Felix's pool."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

#: What stock could build must not be lost when it is built again.
REBUILD_S, REBUILD_SOURCE_BYTES = 60.0, 1 << 30


def patient(**more: Any) -> Any:
    """Options of a pool that builds whatever stock could build."""
    from felix.measure.pool import local

    return local.LocalOptions(
        build_timeout_s=REBUILD_S, max_source_bytes=REBUILD_SOURCE_BYTES, **more
    )


def warm_us(task: Any, mod: Any) -> float | None:
    """Latency of a schedule with a warm L2, by Felix's pool."""
    from felix.measure.pool import local

    with local.LocalPool(task, warm_options()) as pool:
        (measured,) = pool.measure([mod])
    return measured.latency_us


def warm_options() -> Any:
    """Options of a pool that times with a warm L2."""
    from felix.measure import timing

    warm = timing.TimingOptions(flush=False, max_repeats=5, min_repeat_ms=20)
    return patient(builders=1, timing=warm, check=False)


def cold_us(task: Any, mods: Sequence[Any]) -> list[float | None]:
    """Latencies in Felix's pool, whatever a build takes."""
    from felix.measure.pool import local

    with local.LocalPool(task, patient()) as pool:
        return [measurement.latency_us for measurement in pool.measure(mods)]
