"""One device of a pool: the thread that prepares its tasks, and checks and times candidates.

A device that helps the home of a task is calibrated for the task first: both time one candidate,
the yardstick, and latencies of the helper are multiplied with the ratio. A helper that differs by
more than `MAX_DIFFERENCE`, or cannot run the yardstick, measures nothing of the task. A device
that cannot be used at all is taken out, if there is another.
"""

from __future__ import annotations

import logging
import threading
from concurrent.futures import Future

from felix import errors
from felix.measure import protocol
from felix.measure.pool import candidates
from felix.measure.pool.stages import build_stage, dispatch, run_stage

_log = logging.getLogger(__name__)

#: Two cards of a model differ by a few percent; one that differs by more is throttled or busy.
MAX_DIFFERENCE = 0.15


class DeviceStage:
    """Takes from `queues` what device `index` does next, until they are closed.

    Args:
        index: of the device in the pool.
        runs: its run worker.
        queues: of all devices.
        settle: takes a candidate and its measurement.
        arch: of the target where the device is a GPU, like "sm_90"; empty elsewhere.
    """

    def __init__(
        self,
        index: int,
        runs: run_stage.RunWorker,
        queues: dispatch.Dispatch,
        settle: build_stage.Settle,
        arch: str,
    ) -> None:
        self.index, self.runs = index, runs
        self._queues, self._settle, self._arch = queues, settle, arch
        #: done once the device is open; raises `MeasureError` if it has to be confined and cannot
        self.opened: Future[None] = Future()
        self._thread = threading.Thread(target=self._loop, daemon=True)

    def start(self) -> None:
        """Begin to take items."""
        self._thread.start()

    def join(self) -> None:
        """Wait for the thread; the queues are closed."""
        self._thread.join()

    def _loop(self) -> None:
        try:
            if self._arch:
                self.runs.open(self._arch)
            self.opened.set_result(None)
        except errors.MeasureError as error:
            self.opened.set_exception(error)
            return
        if self.runs.broken is not None and self._is_taken_out():
            return
        while (item := self._queues.take(self.index)) is not None:
            if isinstance(item, candidates.PoolTask):
                self.runs.prepare(item.states[self.index])
                if self.runs.broken is not None and self._is_taken_out():
                    item.move_to(self._queues.home_of_next_task())
                    self._queues.put(item)
                    return
            elif item.future.running() or item.future.set_running_or_notify_cancel():
                self._measure(item)

    def _is_taken_out(self) -> bool:
        fault = self.runs.broken
        assert fault is not None
        is_out = self._queues.retire(self.index, fault)
        if is_out:
            _log.warning("device %d measures nothing more: %s", self.index, fault,
                         extra={"action": "device_out", "device": self.index})  # fmt: skip
        return is_out

    def _measure(self, candidate: candidates.Candidate) -> None:
        """Measure a candidate; one that a helper may not measure goes back to its home."""
        task = candidate.task
        if self.index not in task.scales and not self._is_calibrated(task):
            if task.home == self.index:
                why = task.refused[self.index]
                failed = candidate.failed(protocol.ErrorClass.INFRASTRUCTURE, why)
                self._settle(candidate, failed)
            else:
                self._queues.put(candidate)
            return
        scale = task.scales[self.index]
        measurement = self.runs.run(candidate, task.states[self.index])
        if measurement.latency_us is not None and task.yardstick is None:
            task.yardstick = candidates.Yardstick(candidate.binary, measurement.latency_us)
        self._settle(candidate, _scaled(measurement, scale))

    def _is_calibrated(self, task: candidates.PoolTask) -> bool:
        """Compare the device with the one that measured the yardstick; whether it may measure."""
        assert task.yardstick is not None, "the first home needs no calibration"
        future: Future[protocol.Measurement] = Future()
        binary = task.yardstick.binary
        candidate = candidates.Candidate(task, "", "yardstick", future, binary=binary)
        measurement = self.runs.run(candidate, task.states[self.index])
        if measurement.latency_us is None:
            task.refused[self.index] = measurement.message
            return False
        scale = task.yardstick.latency_us / measurement.latency_us
        if 1 - MAX_DIFFERENCE <= scale <= 1 / (1 - MAX_DIFFERENCE):
            task.scales[self.index] = scale
            return True
        refused = f"the device takes {1 / scale:.2f} times as long as the one that began the task"
        task.refused[self.index] = refused
        _log.warning("device %d does not measure a task: %s", self.index, refused,
                     extra={"action": "device_differs", "device": self.index})  # fmt: skip
        return False


def _scaled(measurement: protocol.Measurement, scale: float) -> protocol.Measurement:
    """The measurement as the home of the task would have made it."""
    if measurement.latency_us is None or scale == 1.0:
        return measurement
    return protocol.Measurement.timed(
        [latency_us * scale for latency_us in measurement.latencies_us],
        build_s=measurement.build_s,
        run_s=measurement.run_s,
        checked=measurement.checked,
        device=measurement.device,
    )
