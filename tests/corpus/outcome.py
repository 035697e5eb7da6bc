"""What becomes of one program of the corpus on one target."""

from __future__ import annotations

import dataclasses
import enum
import logging
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from felix import errors
from felix.sketch import sketch as sketching
from felix.sketch import unmodelled
from felix.task import Task
from felix.verify import compare
from tests.corpus import contractions, elementwise, layouts, reductions, written
from tests.corpus.build import Builder
from tests.support import legal_rows

#: Sketches compared of a program: a chain of several products has hundreds.
MAX_SKETCHES = 6
TARGETS = ("llvm", "cuda")
PROGRAMS: dict[str, Builder] = {
    **elementwise.programs(),
    **contractions.programs(),
    **reductions.programs(),
    **layouts.programs(),
    **written.programs(),
}


class Kind(enum.StrEnum):
    """What may happen; the last two should not."""

    MODELLED = "modelled"
    REFUSED = "refused"
    MISMATCH = "mismatch"
    ERROR = "error"


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """Of one program on one target: rows compared with TVM's schedules, or why there are none.

    `message` is the refusal, the first mismatch or the end of the traceback.
    """

    name: str
    target: str
    kind: Kind
    rows: int = 0
    invalid: int = 0
    message: str = ""


def of(name: str, target: str, rows: int = 3) -> Outcome:
    """Make a task of the program and compare up to `rows` rows of each sketch with TVM."""
    try:
        tensors = PROGRAMS[name]()
    except Exception as error:  # topi itself does not make it here
        raise AssertionError(f"{name} cannot be built: {error}") from error
    try:
        return _checked(name, target, Task.from_te(tensors, target, name), rows)
    except errors.UnforeseenForm:
        return Outcome(name, target, Kind.ERROR, message=traceback.format_exc())
    except errors.FelixError as error:
        return Outcome(name, target, Kind.REFUSED, message=f"{type(error).__name__}: {error}")
    except Exception:
        logging.getLogger(__name__).debug("program of the corpus", exc_info=True)
        return Outcome(name, target, Kind.ERROR, message=traceback.format_exc())


class _Unforeseen(logging.Handler):
    """Notes forms that no rule was written for, which cost a sketch or a structure."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(self.format(record))


@contextmanager
def unforeseen_forms() -> Iterator[list[str]]:
    """The tracebacks of what `felix.sketch.unmodelled` reports meanwhile."""
    handler = _Unforeseen()
    logger = logging.getLogger(unmodelled.__name__)
    logger.addHandler(handler)
    try:
        yield handler.messages
    finally:
        logger.removeHandler(handler)


def _checked(name: str, target: str, task: Task, rows: int) -> Outcome:
    with unforeseen_forms() as forms:
        result = _compared(name, target, task, rows)
    return dataclasses.replace(result, kind=Kind.ERROR, message=forms[0]) if forms else result


def _compared(name: str, target: str, task: Task, rows: int) -> Outcome:
    compared = invalid = 0
    sketches = sketching.sketches(task)
    for sketch in sketches[:: -(-len(sketches) // MAX_SKETCHES)]:
        report = compare.check_rows(sketch, legal_rows.draw(sketch, rows, seed=1))
        compared, invalid = compared + report.checked, invalid + report.invalid
        if report.mismatches:
            return Outcome(name, target, Kind.MISMATCH, compared, invalid,
                           str(report.mismatches[0]))  # fmt: skip
    return Outcome(name, target, Kind.MODELLED, compared, invalid)
