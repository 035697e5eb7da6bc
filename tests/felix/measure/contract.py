"""What every measurer does (`felix.runner.protocol`); run over those that there are."""

from __future__ import annotations

import concurrent.futures
from typing import Any

import pytest
import tvm

from felix import errors
from felix.measure.measurer import Measurer
from felix.runner import protocol
from felix.task import Task
from tests.support import pool_programs as programs

_E = protocol.ErrorClass


def task() -> Task:
    """A small GEMM, whose candidates are those of `programs`."""
    return Task.from_prim_func(programs.gemm, "llvm")


def _mod(function: Any) -> tvm.IRModule:
    return tvm.IRModule({"main": function})


def good_candidates_have_latencies_and_are_checked(measurer: Measurer) -> None:
    """Several at a time, in the order of the programs."""
    for measured in measurer.measure([_mod(programs.gemm)] * 3):
        assert measured.ok, measured.message
        assert measured.checked and measured.latency_us and measured.latency_us > 0
        assert measured.build_s > 0 and measured.run_s > 0 and measured.device
        assert len(measured.latencies_us) >= 1


def bad_candidates_cost_themselves_alone(measurer: Measurer) -> None:
    """Each with its class of error and what is wrong, good ones between them."""
    wrong = {
        "other_sum": (_E.WRONG_RESULT, "output c"),
        "unwritten_row": (_E.WRONG_RESULT, "64 of 4096 elements"),
        "abort": (_E.LAUNCH, ""),
        "null_pointer": (_E.LAUNCH, ""),
        "hang": (_E.TIMEOUT, ""),
    }
    futures = {}
    for name in wrong:
        futures[name] = measurer.submit(_mod(getattr(programs, name)))
        futures[f"after {name}"] = measurer.submit(_mod(programs.gemm))
    for name, future in futures.items():
        measured = future.result(120)
        error, message = wrong.get(name, (None, ""))
        assert measured.error is error and message in measured.message, (name, measured)
        assert measured.ok or (measured.message and measured.latency_us is None)


def what_waits_can_be_cancelled(measurer: Measurer) -> None:
    """The last of many has not begun."""
    futures = [measurer.submit(_mod(programs.gemm)) for _ in range(12)]
    assert futures[-1].cancel()
    done = concurrent.futures.wait(futures, 120).done
    assert len(done) == 12 and sum(each.cancelled() for each in done) == 1
    assert all(each.result().ok for each in done if not each.cancelled())


def thorough_submissions_are_long_bursts(measurer: Measurer) -> None:
    """Whatever the rank of the candidate."""
    first = measurer.submit(_mod(programs.gemm)).result(120)
    thorough = measurer.submit(_mod(programs.gemm), thorough=True).result(120)
    assert first.ok and thorough.ok and thorough.latencies_us


def a_closed_measurer_takes_nothing(measurer: Measurer) -> None:
    """And may be closed twice; what runs becomes an error or ends."""
    future = measurer.submit(_mod(programs.gemm))
    measurer.close()
    measurer.close()
    assert future.cancelled() or future.done()
    with pytest.raises(errors.MeasureError, match="closed"):
        measurer.submit(_mod(programs.gemm))


EVERY = [
    good_candidates_have_latencies_and_are_checked,
    bad_candidates_cost_themselves_alone,
    what_waits_can_be_cancelled,
    thorough_submissions_are_long_bursts,
    a_closed_measurer_takes_nothing,
]
