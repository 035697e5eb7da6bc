"""The run worker as its pool sees it: prepares tasks, then checks and times their candidates."""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import logging
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from felix import errors
from felix.measure import locks, work
from felix.measure import worker as pool_worker
from felix.processes import confine, policy
from felix.runner import protocol, timing

_ErrorClass = protocol.ErrorClass
_log = logging.getLogger(__name__)


class Quiet:
    """Stops everything else: those who share the lock `exclusive`, and the `paused` workers."""

    def __init__(
        self,
        exclusive: locks.ReadWriteLock | locks.DeviceLock,
        paused: Sequence[pool_worker.Worker],
    ) -> None:
        self._exclusive = exclusive
        self._paused = paused

    @contextlib.contextmanager
    def until_end(self) -> Iterator[Callable[[], None]]:
        """Yields a function that takes the lock and pauses the workers until the block ends."""
        is_locked = False

        def begin() -> None:
            nonlocal is_locked
            if not is_locked:
                self._exclusive.acquire()
            is_locked = True
            for worker in self._paused:
                worker.pause()

        try:
            yield begin
        finally:
            for worker in self._paused:
                worker.resume()
            if is_locked:
                self._exclusive.release()


class Runner(abc.ABC):
    """Prepares tasks and runs candidates on one device, of this machine or elsewhere.

    Methods raise `work.WorkerGone` where the device cannot be reached, and nothing is known
    about the candidates of which there is no measurement yet.
    """

    #: Candidates of a request.
    batch_size = 1
    #: Why what it runs is not confined; None if it is.
    unconfined: str | None = None
    #: Why the device cannot be used, as far as is known; None if it can.
    broken: str | None = None

    @abc.abstractmethod
    def open(self, arch: str) -> None:
        """Open the GPU of an architecture like "sm_90".

        Raises:
            MeasureError: what runs there has to be confined, and the GPU cannot be used so.
        """

    @abc.abstractmethod
    def prepare(self, state: work.TaskState) -> None:
        """Run a task's reference; `state` holds a failure for its candidates."""

    @abc.abstractmethod
    def run(self, candidate: work.QueuedProgram, state: work.TaskState) -> protocol.Measurement:
        """Check and time one candidate; where a reference failed, another try may come first."""

    def run_all(
        self, batch: Sequence[tuple[work.QueuedProgram, work.TaskState]]
    ) -> Iterator[tuple[work.QueuedProgram, protocol.Measurement]]:
        """Check and time candidates; each with its measurement as soon as that is there."""
        for candidate, state in batch:
            yield candidate, self.run(candidate, state)

    @abc.abstractmethod
    def await_return(self) -> bool:
        """Wait until a device that could not be reached works again; False: it never will."""


class OneByOne(Runner):
    """By workers here, a candidate at a time, once the task's reference is there."""

    def __init__(self, options: work.LocalOptions, device: work.Device) -> None:
        self._options, self._device = options, device
        default = timing.TimingOptions() if device.kind == "cpu" else timing.GPU
        self._timing = options.timing or default

    def run(self, candidate: work.QueuedProgram, state: work.TaskState) -> protocol.Measurement:
        if state.failure is not None and state.tries_left > 0:
            self.prepare(state)
        if state.failure is not None:
            return candidate.without_reference(state.failure)
        return self._run(candidate, state)

    @abc.abstractmethod
    def _run(self, candidate: work.QueuedProgram, state: work.TaskState) -> protocol.Measurement:
        """Check and time one candidate of a task that has its reference."""

    def _request(self, candidate: work.QueuedProgram, state: work.TaskState) -> dict[str, Any]:
        """What a worker needs to know for that, whatever its device."""
        options = self._timing.burst() if candidate.thorough else self._timing
        return {
            "verb": "run",
            "folder": state.folder,
            "library": candidate.binary,
            "options": dataclasses.asdict(options),
            "best_us": state.best_us,
        }


class LocalRunner(OneByOne):
    """Sends requests to `worker`, with `quiet` while kernels run, and classifies failures."""

    def __init__(
        self,
        worker: pool_worker.Worker,
        quiet: Quiet,
        options: work.LocalOptions,
        device: work.Device,
    ) -> None:
        super().__init__(options, device)
        self.worker = worker
        self._quiet = quiet
        self._prepared: list[work.TaskState] = []

    def open(self, arch: str) -> None:
        """Open the GPU before there is a task, by a confined worker if its driver works in one.

        Args:
            arch: of the target, like "sm_90".

        Raises:
            MeasureError: the worker has to be confined, and the GPU cannot be used so.
        """
        chosen = self._options.confine_gpu
        if chosen is policy.ConfineGpu.OFF:
            self.worker.is_confined, self.unconfined = False, "that is how it is set"
            return
        outcome = confine.decide(lambda confined: self._refused(arch, confined))
        is_confined = not outcome.is_in_the_way
        if chosen is policy.ConfineGpu.ON and outcome.reason is not None:
            where = "cannot be used" if is_confined else "does not work in a confined process"
            raise errors.MeasureError(f"the GPU {where}: {outcome.reason}")
        if is_confined:
            self.worker.is_confined, self.broken = True, outcome.reason
            return
        self.worker.is_confined, self.unconfined = False, outcome.reason
        _log.warning(
            "the run worker is not confined, because the GPU's driver does not work so: %s",
            outcome.reason,
            extra={"action": "confinement_missing"},
        )

    def _refused(self, arch: str, confined: bool) -> str | None:
        """Why a fresh worker cannot use the GPU; None if it can."""
        try:
            with self._quiet.until_end() as begin:
                if self.worker.pid is not None:
                    begin()
                    self.worker.kill()
            self.worker.is_confined = confined
            reply = self._call({"verb": "open", "arch": arch}, self._options.reference_timeout_s)
        except (pool_worker.WorkerLost, errors.MeasureError) as error:
            return str(error)
        message: str | None = reply.get("message")
        return message

    def prepare(self, state: work.TaskState) -> None:
        """Run a task's reference; `state` holds a failure for its candidates.

        What failed may have left memory or a broken context behind, so the next request gets a
        fresh worker. There, the first candidate tries once more, unless it would take as long.
        """
        if state.reference.failure is not None:
            state.failure, state.tries_left = state.reference.failure, 0
            return
        request = {
            "verb": "prepare",
            "folder": state.folder,
            "description": state.reference.description,
            "binary": state.reference.binary,
        }
        state.tries_left -= 1
        try:
            reply = self._call(request, self._options.reference_timeout_s)
            state.failure = reply.get("message")
            self._prepared.append(state)
        except pool_worker.WorkerTimeout as error:
            state.failure, state.tries_left = str(error), 0
        except (pool_worker.WorkerLost, errors.MeasureError) as error:
            state.failure = str(error)
        if state.failure is None:
            self.broken = None
        elif self.broken is not None:
            state.failure = self.broken  # a confined worker's own error may hide it

    def await_return(self) -> bool:
        """A worker that died is replaced at the next request."""
        return True

    def _run(self, candidate: work.QueuedProgram, state: work.TaskState) -> protocol.Measurement:
        start = time.monotonic()
        request = self._request(candidate, state) | {"cache_bytes": self._device.cache_bytes}
        if self._device.kind == "cpu":
            request["move"] = candidate.thorough
        try:
            reply = self._call(request, self._options.run_timeout_s)
        except (pool_worker.WorkerLost, errors.MeasureError) as error:
            run_s = time.monotonic() - start
            return candidate.failed(
                classify(error, _ErrorClass.LAUNCH), f"running: {error}", run_s
            )
        if "error" in reply:
            return candidate.failed(
                _ErrorClass(reply["error"]), reply["message"], reply["seconds"]
            )
        return timed(candidate, state, reply, self._device)

    def _call(self, request: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        """One request; a worker that failed is killed, unless its reply says `reusable`.

        It may have written where it should not. It is killed while others are kept off, because
        on a GPU that takes the device's time, too.
        """
        with self._quiet.until_end() as begin:
            try:
                reply = self.worker.call(request, timeout_s, begin)
            except pool_worker.WorkerMisbehaved:
                self._forget_references()
                raise
            if "error" in reply and not reply.get("reusable", False):
                self.worker.kill()
        return reply

    def _forget_references(self) -> None:
        """What a worker that misbehaved has computed is gone, and is computed once more."""
        for state in self._prepared:
            state.failure, state.tries_left = "the worker that computed it was ended", 1
        self._prepared.clear()


def timed(
    candidate: work.QueuedProgram,
    state: work.TaskState,
    reply: dict[str, Any],
    device: work.Device,
) -> protocol.Measurement:
    """The measurement of a reply with latencies; the task's best one takes note of it."""
    measurement = protocol.Measurement.timed(
        reply["latencies_us"],
        build_s=candidate.build_s,
        run_s=reply["seconds"],
        checked=True,
        device=device.name,
    )
    latency_us = measurement.latency_us
    assert latency_us is not None
    state.best_us = min(latency_us, state.best_us or latency_us)
    return measurement


def classify(error: Exception, candidate_error: _ErrorClass) -> _ErrorClass:
    """A death by SIGKILL came from outside (or from the kernel, short of memory)."""
    if isinstance(error, pool_worker.WorkerTimeout):
        return _ErrorClass.TIMEOUT
    if isinstance(error, pool_worker.WorkerMisbehaved):
        return candidate_error
    if isinstance(error, pool_worker.WorkerDied) and error.signal_number != signal.SIGKILL:
        return candidate_error
    return _ErrorClass.INFRASTRUCTURE
