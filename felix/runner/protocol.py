"""What a measurement is: a latency, or why there is none; never a sentinel number.

Units: latencies in microseconds (us), everything a person waits for in seconds (s).
"""

from __future__ import annotations

import dataclasses
import enum
import statistics
from collections.abc import Sequence
from typing import Any, Self

#: Suffix of expected outputs that a builder has computed.
OUTPUTS = ".outputs"


class ErrorClass(enum.StrEnum):
    """Why a candidate has no latency."""

    #: The compiler refused the candidate or died on it.
    BUILD = "build"
    #: The library could not be loaded, or the kernel crashed or raised.
    LAUNCH = "launch"
    #: Building or running took longer than allowed.
    TIMEOUT = "timeout"
    #: The kernel ran, and its output is not that of the unscheduled program.
    WRONG_RESULT = "wrong_result"
    #: Not the candidate's fault: a worker was killed from outside or could not start, something
    #: is missing on this machine, the task's own tensors do not fit.
    INFRASTRUCTURE = "infrastructure"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """The measurement of one candidate: `latency_us`, or `error` with `message`.

    `build_s` and `run_s` are seconds spent on each step, errors included; a step that was not
    reached took 0. Those of building are CPU seconds of the builder, so they do not depend on
    what else the machine does; of a build that was cut or died, those it had used until then.
    `spread` is the interquartile range over the median, None when the kernel was timed once.
    `checked` says that the output was compared with the reference.
    """

    latency_us: float | None = None
    latencies_us: tuple[float, ...] = ()
    spread: float | None = None
    error: ErrorClass | None = None
    message: str = ""
    build_s: float = 0.0
    run_s: float = 0.0
    checked: bool = False
    device: str = ""

    def __post_init__(self) -> None:
        if (self.latency_us is None) == (self.error is None):
            raise ValueError("a measurement has either a latency or an error")

    @property
    def ok(self) -> bool:
        """Whether there is a latency."""
        return self.error is None

    @classmethod
    def timed(cls, latencies_us: Sequence[float], **fields: Any) -> Self:
        """A successful measurement: median and relative interquartile range of the repeats."""
        return cls(
            latency_us=statistics.median(latencies_us),
            latencies_us=tuple(latencies_us),
            spread=relative_spread(latencies_us),
            **fields,
        )


def message_of(error: Exception) -> str:
    """An error's class and the first line that says something, at most 500 characters.

    TVM's messages begin with a stack trace at times, those of a board with the call.
    """
    lines = [line.strip() for line in str(error).splitlines()]
    said = [line for line in lines if line and not line.startswith(("File ", "Traceback"))]
    first = next((line for line in said if "RPC call:" not in line), "no message")
    return f"{type(error).__name__}: {first}"[:500]


def relative_spread(values: Sequence[float]) -> float | None:
    """Interquartile range over median; None for fewer than two values."""
    if len(values) < 2:
        return None
    low, median, high = statistics.quantiles(values, n=4, method="inclusive")
    return (high - low) / median if median > 0 else 0.0
