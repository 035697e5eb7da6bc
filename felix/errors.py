"""All errors Felix raises on purpose; one tree, docstring = default message.

Catch `FelixError` to handle every error that is the caller's to fix. The command line turns
each into one line on stderr and a non-zero exit code.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator


class FelixError(Exception):
    """Felix could not carry out the request."""

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or (self.__doc__ or "").strip())


class WorkloadError(FelixError):
    """The workload cannot be built: check the operator name, its parameters and the dtype."""


class TargetError(FelixError):
    """The target is not one Felix can tune for: use `llvm`, `cuda` or a TVM target."""


class UnsupportedSchedule(FelixError):
    """The schedule uses an instruction or a program form the symbolic program cannot model."""


class UnforeseenForm(UnsupportedSchedule):
    """The program has a form that modelling has no rule for, nor an error of its own."""


class NotScheduled(UnsupportedSchedule, AttributeError):
    """A sketch of a template has nothing that only a schedule of TVM has."""


class InvalidSchedule(FelixError):
    """TVM rejected these decisions: the trace did not apply or a postprocessor failed."""


class DecisionError(FelixError):
    """The decisions do not belong to this sketch: wrong length or a value outside its domain."""


class MeasureError(FelixError):
    """Measuring could not start: the worker pool is unusable."""


class NoDevice(MeasureError):
    """No device that can measure the task is there now: wait until there is one."""


class RecordError(FelixError):
    """A record or checkpoint file cannot be read: it is malformed or of another version."""


class CheckpointError(FelixError):
    """The cost-model checkpoint does not fit: wrong feature version, names or device kind."""


class OutputError(FelixError):
    """The output folder cannot be written."""


class FolderInUse(OutputError):
    """Another run is writing to the output folder."""


@contextlib.contextmanager
def writing(what: object) -> Iterator[None]:
    """Raise `OutputError` where the block cannot write something."""
    try:
        yield
    except OSError as error:
        raise OutputError(f"cannot write {what}: {error.strerror or error}") from error


class TuningError(FelixError):
    """Tuning cannot start or found no schedule that runs correctly."""


class NoDesignSpace(TuningError):
    """A task has no sketch with legal schedules."""


class RemoteError(FelixError):
    """The service refused the request, or cannot be reached."""

    def __init__(self, message: str | None = None, status: int | None = None) -> None:
        super().__init__(message)
        #: HTTP status of the answer; None if there was none.
        self.status = status
