"""A measurer without processes, for tests and dry runs of everything that needs one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Self

from felix.measure import protocol

if TYPE_CHECKING:
    from types import TracebackType

    import tvm


class FunctionMeasurer:
    """Answers each candidate with `latency_of(mod)`; `seen` keeps what was submitted."""

    def __init__(self, latency_of: Callable[[tvm.IRModule], float | protocol.ErrorClass]) -> None:
        self.seen: list[tvm.IRModule] = []
        self._latency_of = latency_of

    def submit(self, mod: tvm.IRModule, thorough: bool = False) -> Future[protocol.Measurement]:
        """Measure at once; the future is already done."""
        self.seen.append(mod)
        future: Future[protocol.Measurement] = Future()
        answer = self._latency_of(mod)
        if isinstance(answer, protocol.ErrorClass):
            result = protocol.Measurement(error=answer, message=answer.value, device="function")
        else:
            result = protocol.Measurement.timed([answer], checked=True, device="function")
        future.set_result(result)
        return future

    def measure(self, mods: Sequence[tvm.IRModule]) -> list[protocol.Measurement]:
        """Measure all, in order."""
        return [self.submit(mod).result() for mod in mods]

    def close(self) -> None:
        """Nothing to end."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


if TYPE_CHECKING:
    _: protocol.Measurer = FunctionMeasurer(lambda mod: 1.0)
