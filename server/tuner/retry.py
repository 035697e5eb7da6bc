"""What becomes of a job whose attempt failed: a policy that decides and touches nothing.

Errors of the workload stay what they are however often they are tried. Errors of the machine
(disk, blob store, measuring processes) may pass: the job is tried again, later each time, and by
another tuner if there is one.
"""

from __future__ import annotations

import dataclasses

from felix import errors as engine
from server import errors

#: Errors that a later attempt may not meet.
PASSING = (engine.MeasureError, engine.OutputError, errors.BlobError, OSError, MemoryError)


@dataclasses.dataclass(frozen=True, slots=True)
class Decision:
    """What to write about a failed attempt; `retry_after_s` None: never again."""

    error: str
    message: str
    retry_after_s: float | None


def decide(error: BaseException, attempts: int, max_attempts: int) -> Decision:
    """What to do after attempt number `attempts` (from 1) ended with this error."""
    message = " ".join(str(error).split())[:2000] or type(error).__name__
    is_ours = not isinstance(error, engine.FelixError)
    if not isinstance(error, PASSING) and not is_ours:
        return Decision(type(error).__name__, message, None)
    if is_ours:
        message = f"{type(error).__name__}: {message}"
    if attempts >= max_attempts:
        return Decision("infrastructure", f"{message} (attempt {attempts}, the last)", None)
    return Decision("infrastructure", message, min(60.0, 2.0**attempts))
