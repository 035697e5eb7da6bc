"""How long an engine may take and what memory it may have: judged from outside its process."""

from __future__ import annotations

import time

from server import errors, settings, states
from server.tuner import claimed_job
from server.tuner.process import engine_child

_Instruction = states.Instruction

#: A job that asks for few seconds has at least so many for one step.
MIN_STEP_S = 20.0
#: A step may wait for a core this many times as long as it may compute.
STARVED = 5.0
#: How long a run may take to come to the end of its round when it has to yield, in seconds.
ROUND_S = 5.0
#: And how long one that has spent its budget may take to its end.
FINISH_S = 15.0
#: How the last step of a run begins, and the one that `task_open_s` limits (`run_records`).
FINISHING, OPENING = "measuring the fastest", "building the formulas"


class TimeLimit(errors.ServiceError):
    """A step of the job took too long."""


class MemoryLimit(errors.ServiceError):
    """The job needs more memory than this service gives it."""


class Unresponsive(Exception):
    """The engine was told to stop, and did not."""


class EngineMonitor:
    """Judges an engine by when it was last heard, what it was told and what it uses.

    A step's limit is on CPU seconds, so that a loaded machine does not fail what an idle one
    does, and on `STARVED` times as long a wait.

    Args:
        limits: has `stop_s`, `task_open_s`, `step_s` and `engine_bytes`.
        claimed: the job.
        usage: of the engine's process, which says what it uses.
        is_export: whether the artifact is made, which only cancelling ends.
    """

    def __init__(
        self,
        limits: settings.Settings,
        claimed: claimed_job.ClaimedJob,
        usage: engine_child.Child,
        is_export: bool,
    ) -> None:
        self._limits, self._claimed = limits, claimed
        self._usage, self._is_export = usage, is_export
        self._began_s = self._heard_s = time.monotonic()
        self._cpu_before_s = usage.cpu_s()
        self._step = "making the artifact" if is_export else "beginning the run"
        self._must_end_since_s: float | None = None
        self._yields_since_s: float | None = None

    def heard(self) -> None:
        """The engine said something: that ends a step, but not making a task's formulas."""
        if not self._step.startswith(OPENING):
            self._restart()

    def begin_step(self, step: str) -> None:
        """The engine does this from now on."""
        self._step = step
        self._restart()

    def _restart(self) -> None:
        self._heard_s, self._cpu_before_s = time.monotonic(), self._usage.cpu_s()

    def end_now(self) -> None:
        """The run cannot go on, whatever the instruction says."""
        self._must_end_since_s = self._must_end_since_s or time.monotonic()

    def check(self) -> None:
        """Judge.

        Raises:
            Unresponsive, TimeLimit, MemoryLimit: the engine has to be killed.
        """
        now_s = time.monotonic()
        if self._claimed.instruction is _Instruction.YIELD and not self._is_export:
            self._yields_since_s = self._yields_since_s or now_s
        if self.must_end():
            self._must_end_since_s = self._must_end_since_s or now_s
        if self._must_end_since_s and now_s - self._must_end_since_s > self._limits.stop_s:
            raise Unresponsive
        limit_s = self._step_limit_s()
        waited_s = now_s - self._heard_s
        if waited_s > limit_s and self._computed_s(waited_s) > limit_s:
            raise TimeLimit(
                f"{self._step} took longer than {limit_s:g} s. What was measured stays. Tune a "
                "smaller workload, or leave that part of it out"
            )
        if self._usage.rss_bytes() > self._limits.engine_bytes:
            raise MemoryLimit(
                f"{self._step} needs more than {self._limits.engine_bytes >> 20} MiB of memory. "
                "What was measured stays. Tune a smaller workload"
            )

    def _computed_s(self, waited_s: float) -> float:
        """CPU seconds since the engine was heard, and some of the time that it waited."""
        return max(self._usage.cpu_s() - self._cpu_before_s, waited_s / STARVED)

    def must_end(self) -> bool:
        """Whether the engine has to put the job down within `Settings.stop_s`."""
        instruction = self._claimed.instruction
        if self._is_export:
            return instruction in (_Instruction.CANCEL, _Instruction.LEASE_LOST)
        if instruction is _Instruction.YIELD and not self._claimed.is_leaving:
            limit_s = FINISH_S if self._step.startswith(FINISHING) else ROUND_S
            since_s = self._yields_since_s
            return since_s is not None and time.monotonic() - since_s > limit_s
        return self._claimed.should_stop() and instruction is not _Instruction.STOP

    def _step_limit_s(self) -> float:
        if not self._step.startswith(OPENING):
            return self._limits.step_s
        job = self._claimed.job
        if job.seconds is None:
            return self._limits.task_open_s
        left_s = job.seconds - job.elapsed_s - (self._heard_s - self._began_s)
        return min(self._limits.task_open_s, max(MIN_STEP_S, left_s))
