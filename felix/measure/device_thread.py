"""One device of a pool: the thread that prepares its tasks, and checks and times candidates.

A device that helps the primary device of a task is calibrated for the task first: both time one
candidate, the fastest so far, and latencies of the helper are multiplied with the ratio. A helper
that differs by more than `MAX_DIFFERENCE`, or cannot run that one, measures nothing of the task.
The primary that a task has got because its first one is gone may be slower by more,
`MAX_PRIMARY_DIFFERENCE`, as nobody else goes on, and as fast as it is: of two devices of one kind
the slow one is busy or throttled. A device that cannot be used at all is taken out, if there is
another.
"""

from __future__ import annotations

import collections
import logging
import math
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future

from felix import errors
from felix.measure import building, dispatch, noise_probe, running, work
from felix.runner import protocol

# How many candidates a device measured lately, and how many it failed.

#: How far back it counts, and in what steps, in seconds.
SPAN_S, STEP_S = 3600.0, 60.0


class History:
    """Counts by the minute; one thread adds, others read."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        #: (minute, measured, failed), oldest first
        self._steps: collections.deque[tuple[int, int, int]] = collections.deque(
            maxlen=int(SPAN_S / STEP_S)
        )

    def add(self, is_failure: bool) -> None:
        """One more candidate."""
        step, measured, failed = int(self._clock() / STEP_S), 0, 0
        if self._steps and self._steps[-1][0] == step:
            _, measured, failed = self._steps.pop()
        self._steps.append((step, measured + 1, failed + is_failure))

    def counts(self) -> tuple[int, int]:
        """(measured, of them failed) in the last hour."""
        first = int((self._clock() - SPAN_S) / STEP_S)
        recent = [each for each in self._steps.copy() if each[0] > first]
        return sum(each[1] for each in recent), sum(each[2] for each in recent)


_log = logging.getLogger(__name__)
_INFRASTRUCTURE = protocol.ErrorClass.INFRASTRUCTURE

#: Two cards of a model differ by a few percent; one that differs by more is throttled or busy.
MAX_DIFFERENCE = 0.15
#: A device that takes more than 2.5 times as long as another one orders kernels differently.
MAX_PRIMARY_DIFFERENCE = 0.6
#: A new primary is compared so often before it is refused: it may have been busy for a moment.
PRIMARY_TRIES = 3


class DeviceThread(threading.Thread):
    """Takes from `queues` what device `index` does next, until they are closed.

    Args:
        index: of the device in the pool.
        runs: its run worker.
        queues: of all devices.
        settle: takes a candidate and its measurement.
        arch: of the target where the device is a GPU, like "sm_90"; empty elsewhere.
        watch: the noise probe of the pool; None: it has none.
    """

    def __init__(
        self,
        index: int,
        runs: running.Runner,
        queues: dispatch.Dispatch,
        settle: building.Settle,
        arch: str,
        watch: noise_probe.NoiseProbe | None = None,
    ) -> None:
        super().__init__(daemon=True)
        self.index, self.runs = index, runs
        self._queues, self._settle, self._arch = queues, settle, arch
        self._watch, self.history = watch, History()
        #: done once the device is open; raises `MeasureError` if it has to be confined and cannot
        self.opened: Future[None] = Future()

    def run(self) -> None:
        """Open the device, then take items until the queues are closed or it is out."""
        try:
            if self._arch:
                self.runs.open(self._arch)
            self.opened.set_result(None)
        except errors.MeasureError as error:
            self.opened.set_exception(error)
            return
        if self.runs.broken is not None and self._take_out():
            return
        while self._probe():
            item = self._queues.take(self.index, noise_probe.LOOK_S if self._watch else None)
            if item is not None and not self._serve(item):
                return

    def _serve(self, item: dispatch.Item) -> bool:
        """Do what comes next; whether the device goes on."""
        if not isinstance(item, work.QueuedProgram):
            return self._prepare(item)
        batch = [item, *self._queues.take_more(self.index, self.runs.batch_size - 1)]
        if self._watch is not None:
            self._watch.count(self.index, len(batch))
        return self._measure([each for each in batch if each.claim()])

    def _probe(self) -> bool:
        """Time the noise probe if it is due, and rest while it is bad; False: the device ends."""
        if self._queues.is_closed:
            return False
        if self._watch is None or not self._watch.is_due(self.index):
            return True
        try:
            fault = self._watch.fault(self.index, self.runs.run)
            return fault is None or self._rest(fault)
        except work.WorkerGone as gone:
            return self._await_return(str(gone), [])

    def _rest(self, fault: str) -> bool:
        """Leave candidates to others until the probe is as it should be; False: the pool ends."""
        assert self._watch is not None
        self._warn("device_out", "rests", fault)
        self._queues.send_away(self.index, fault)
        while not self._queues.await_close(noise_probe.AGAIN_S):
            if self._watch.fault(self.index, self.runs.run) is None:
                self._queues.take_back(self.index)
                return True
        return False

    def _prepare(self, task: work.PoolTask) -> bool:
        """Run a task's reference; whether the device goes on."""
        try:
            self.runs.prepare(task.states[self.index])
        except work.WorkerGone as gone:
            return self._await_return(str(gone), [task])
        if self.runs.broken is not None and self._take_out():
            task.move_to(self._queues.device_of_next_task())
            self._queues.put(task)
            return False
        return True

    def _await_return(self, why: str, left: Sequence[dispatch.Item]) -> bool:
        """Give what is `left` to others, and wait for the device; False if it never comes back."""
        if not self._queues.is_closed:
            self._warn("device_away", "is out of reach", why)
        for item in left:  # before the others' share is moved, so that it goes along
            if isinstance(item, work.QueuedProgram):
                item.losses += 1
                if item.losses >= building.MAX_LOSSES:
                    failed = item.failed(_INFRASTRUCTURE, f"running: {why}")
                    self._settle(item, failed)
                    continue
            self._queues.put(item)
        self.history.add(is_failure=True)
        self._queues.send_away(self.index, why)
        if not self.runs.await_return():  # it stays away
            return False
        self._queues.take_back(self.index)
        return True

    def _take_out(self) -> bool:
        """Use the broken device no more, unless it is the last one; whether it is out."""
        fault = self.runs.broken
        assert fault is not None
        is_out = self._queues.retire(self.index, fault)
        if is_out:
            self._warn("device_out", "measures nothing more", fault)
        return is_out

    def _warn(self, action: str, what: str, why: str) -> None:
        """Say in the log what the device does."""
        extra = {"action": action, "device": self.index}
        _log.warning("device %d %s: %s", self.index, what, why, extra=extra)

    def _measure(self, batch: list[work.QueuedProgram]) -> bool:
        """Measure candidates; whether the device goes on."""
        left, drains = list(batch), self._queues.n_drains
        try:
            for candidate in batch:
                if not self._ensure_calibrated(candidate.task):
                    left.remove(candidate)
                    self._refuse(candidate)
            states = [(each, each.task.states[self.index]) for each in left]
            for candidate, measurement in self.runs.run_all(states):
                left.remove(candidate)
                self._finish(candidate, measurement)
        except work.WorkerGone as gone:
            if self._queues.n_drains != drains:  # nobody wants them any more
                for candidate in left:
                    failed = candidate.failed(_INFRASTRUCTURE, "the pool was interrupted")
                    self._settle(candidate, failed)
                left = []
            return self._await_return(str(gone), left)
        return True

    def _finish(self, candidate: work.QueuedProgram, measurement: protocol.Measurement) -> None:
        task = candidate.task
        scaled = _scaled(measurement, task.scales.get(self.index, 1.0))
        if scaled.latency_us is not None:
            task.note(work.Fastest(candidate.binary, scaled.latency_us))
        self.history.add(measurement.error is _INFRASTRUCTURE)
        self._settle(candidate, scaled)

    def _ensure_calibrated(self, task: work.PoolTask) -> bool:
        """Calibrate the device for a task, unless it is; whether it may measure it."""
        if self.index in task.scales:
            return True
        if task.primary != self.index:
            if self._calibrate(task, MAX_DIFFERENCE, tries=1):
                return True
            if task.primary != self.index:
                return False
            task.refused.pop(self.index, None)  # it has become the primary meanwhile
        return self._calibrate(task, MAX_PRIMARY_DIFFERENCE, PRIMARY_TRIES)

    def _refuse(self, candidate: work.QueuedProgram) -> None:
        """One that a helper may not measure goes to the primary, where it fails if interrupted."""
        task = candidate.task
        why = task.refused.get(self.index, "the pool was interrupted")
        if task.primary == self.index or self.index not in task.refused:
            self._settle(candidate, candidate.failed(_INFRASTRUCTURE, why))
        else:
            self._queues.put(candidate)

    def _calibrate(self, task: work.PoolTask, limit: float, tries: int) -> bool:
        """Compare the device with the one that measured the fastest candidate; whether it may
        measure."""
        refused = ""
        for _ in range(tries):
            best, drains = task.fastest, self._queues.n_drains
            assert best is not None, "the first primary needs no calibration"
            again = work.QueuedProgram(task, "", "fastest", binary=best.binary)
            measurement = self.runs.run(again, task.states[self.index])
            if measurement.latency_us is None:
                if self._queues.n_drains == drains:  # else it says nothing about the device
                    task.refused[self.index] = measurement.message
                return False
            scale = best.latency_us / measurement.latency_us
            most = math.inf if task.primary == self.index else 1 / (1 - limit)
            if 1 - limit <= scale <= most:
                task.scales[self.index] = scale
                return True
            refused = (
                f"the device takes {1 / scale:.2f} times as long as the one that began the task"
            )
        task.refused[self.index] = refused
        self._warn("device_differs", "does not measure a task", refused)
        return False


def _scaled(measurement: protocol.Measurement, scale: float) -> protocol.Measurement:
    """The measurement as the primary of the task would have made it."""
    if measurement.latency_us is None or scale == 1.0:
        return measurement
    return protocol.Measurement.timed(
        [latency_us * scale for latency_us in measurement.latencies_us],
        build_s=measurement.build_s,
        run_s=measurement.run_s,
        checked=measurement.checked,
        device=measurement.device,
    )
