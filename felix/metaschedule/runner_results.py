"""What TVM's runner reports, as measurements of Felix."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tvm.s_tir import meta_schedule as ms

from felix.measure import protocol

if TYPE_CHECKING:
    from tvm.s_tir.schedule import Trace

#: TVM's run time of a failed run, in seconds.
_FAILED_RUN_S = 1e9


def measurement(result: ms.runner.RunnerResult) -> protocol.Measurement:
    """A runner's result; TVM's sentinel for a failed run becomes an error."""
    run_s = [float(seconds) for seconds in result.run_secs or ()]
    if run_s and 0 < statistics.median(run_s) < _FAILED_RUN_S:
        return protocol.Measurement.timed([seconds * 1e6 for seconds in run_s])
    message = str(result.error_msg or "no run time").strip()
    return protocol.Measurement(error=protocol.ErrorClass.LAUNCH, message=message)


def latencies_us(
    candidates: Sequence[ms.search_strategy.MeasureCandidate],
    results: Sequence[ms.runner.RunnerResult],
) -> list[tuple[Trace, float]]:
    """(trace, latency_us) of the candidates that ran."""
    measured = ((c, measurement(r)) for c, r in zip(candidates, results, strict=True))
    return [(c.sch.trace, m.latency_us) for c, m in measured if m.latency_us is not None]
