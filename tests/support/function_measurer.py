"""A measurer without processes, for tests of everything that needs one."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING

from felix.measure.measurer import Measurer
from felix.runner import protocol

if TYPE_CHECKING:
    from felix.builder.payload import Buildable


class FunctionMeasurer(Measurer):
    """Answers each candidate with `latency_of(program)`; `submitted` has them in order."""

    def __init__(self, latency_of: Callable[[Buildable], float | protocol.ErrorClass]) -> None:
        self.submitted: list[Buildable] = []
        self._latency_of = latency_of

    def submit(self, program: Buildable, thorough: bool = False) -> Future[protocol.Measurement]:
        """Measure at once; the future is already done."""
        self.submitted.append(program)
        future: Future[protocol.Measurement] = Future()
        outcome = self._latency_of(program)
        if isinstance(outcome, protocol.ErrorClass):
            measurement = protocol.Measurement(
                error=outcome, message=outcome.value, device="function"
            )
        else:
            measurement = protocol.Measurement.timed([outcome], checked=True, device="function")
        future.set_result(measurement)
        return future

    def close(self) -> None:
        """Nothing to end."""
