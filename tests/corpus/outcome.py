"""What becomes of one program of the corpus on one target."""

from __future__ import annotations

import dataclasses
import enum
import logging
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import tvm
from tvm import te

from benchmarks.support.verify import compare
from felix import errors
from felix import target as target_module
from felix.space import formulas
from felix.space import sketch as sketching
from felix.space.trace_sketch import TraceSketch
from felix.task import Task
from felix.tir import design_space, grammar
from tests.corpus.programs import (
    contractions,
    elementwise,
    families,
    large,
    layouts,
    reductions,
    scripts,
    written,
)
from tests.corpus.programs.build import Builder, Program
from tests.support import legal_rows

#: Sketches compared of a program: a chain of several products has hundreds.
MAX_SKETCHES = 6
#: CPU time that one program may take.
LIMIT_S = 60
TARGETS = ("llvm", "cuda")
PROGRAMS: dict[str, Builder] = {
    **elementwise.programs(),
    **contractions.programs(),
    **reductions.programs(),
    **layouts.programs(),
    **families.programs(),
    **large.programs(),
    **written.programs(),
    **scripts.programs(),
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

    @property
    def last_line(self) -> str:
        """Of the message."""
        return (self.message.strip().splitlines() or [""])[-1]


def of(name: str, target: str, rows: int = 3) -> Outcome:
    """Make a task of the program and compare up to `rows` rows of each sketch with TVM."""
    try:
        program = PROGRAMS[name]()
    except Exception as error:  # topi itself does not make it here
        raise AssertionError(f"{name} cannot be built: {error}") from error
    return of_task(name, target, lambda: task(program, target, name), rows)


def task(program: Program, target: str, name: str) -> Task:
    """The task of a program of the corpus."""
    if isinstance(program, list):
        return Task.from_te(program, target, name)
    return Task.from_prim_func(program, target, name)


def of_task(
    name: str, target: str, make: Callable[[], Task], rows: int, sketches: int = MAX_SKETCHES
) -> Outcome:
    """What becomes of a task that is yet to be made.

    Args:
        sketches: compared at most.
    """
    started = time.process_time()
    try:
        result = _checked(name, target, make(), rows, sketches)
    except errors.UnforeseenForm:
        return Outcome(name, target, Kind.ERROR, message=traceback.format_exc())
    except errors.FelixError as error:
        return Outcome(name, target, Kind.REFUSED, message=f"{type(error).__name__}: {error}")
    except Exception:
        logging.getLogger(__name__).debug("program of the corpus", exc_info=True)
        return Outcome(name, target, Kind.ERROR, message=traceback.format_exc())
    used_s = time.process_time() - started
    if used_s > LIMIT_S:
        return dataclasses.replace(result, kind=Kind.ERROR, message=f"took {used_s:.0f} s")
    return result


def of_stock(name: str, target: str) -> Outcome:
    """Whether MetaSchedule alone makes a design space of the program."""
    program = PROGRAMS[name]()
    func = te.create_prim_func(program) if isinstance(program, list) else program
    mod = tvm.IRModule({"main": func.with_attr("global_symbol", "main")})
    try:
        context = design_space.tune_context(mod, target_module.parse(target), name=name)
        spaces = len(context.generate_design_space())
    except grammar.TVM_ERRORS as error:
        return Outcome(name, target, Kind.REFUSED, message=grammar.first_line(error))
    return Outcome(name, target, Kind.MODELLED, rows=spaces)


def joined(name: str, target: str, outcomes: Sequence[Outcome]) -> Outcome:
    """One outcome of several tasks: the worst, and what was said of those that are not tuned."""
    order = list(Kind)
    worst = max((each.kind for each in outcomes), key=order.index, default=Kind.REFUSED)
    untuned = [f"{o.name}: {o.last_line}" for o in outcomes if o.kind is not Kind.MODELLED]
    tuned = len(outcomes) - len(untuned)
    return Outcome(
        name,
        target,
        worst,
        sum(o.rows for o in outcomes),
        sum(o.invalid for o in outcomes),
        "; ".join([f"{tuned} of {len(outcomes)} tasks", *untuned]),
    )


class _Noting(logging.Handler):
    """Notes warnings."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(self.format(record))


@contextmanager
def logged(name: str) -> Iterator[list[str]]:
    """What a logger warns of meanwhile.

    `felix.space.formulas` warns of forms that no rule was written for, which cost a sketch or
    a structure, with their tracebacks; `felix.frontend` of tasks that the import leaves out.
    """
    handler, logger = _Noting(), logging.getLogger(name)
    logger.addHandler(handler)
    try:
        yield handler.messages
    finally:
        logger.removeHandler(handler)


def _checked(name: str, target: str, task: Task, rows: int, most: int) -> Outcome:
    with logged(formulas.__name__) as forms:
        result = _compared(name, target, task, rows, most)
    return dataclasses.replace(result, kind=Kind.ERROR, message=forms[0]) if forms else result


def _compared(name: str, target: str, task: Task, rows: int, most: int) -> Outcome:
    compared = invalid = 0
    every = sketching.sketches(task)
    traces = [sketch for sketch in every if isinstance(sketch, TraceSketch)]
    for sketch in _some(traces, most):
        report = compare.check_rows(sketch, legal_rows.draw(sketch, rows, seed=1))
        compared, invalid = compared + report.checked, invalid + report.invalid
        if report.mismatches:
            return Outcome(
                name, target, Kind.MISMATCH, compared, invalid, str(report.mismatches[0])
            )
    return Outcome(name, target, Kind.MODELLED, compared, invalid)


def _some(sketches: Sequence[TraceSketch], most: int) -> Sequence[TraceSketch]:
    """At most so many sketches, spread over all; and the last one of each variant."""
    spread = sketches[:: -(-len(sketches) // most)] if sketches else ()
    last = {str(sketch.variant): sketch for sketch in sketches}
    return list({sketch.index: sketch for sketch in (*spread, *last.values())}.values())
