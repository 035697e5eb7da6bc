"""The sketches of one task that have legal schedules, and the search that counts in them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from felix import errors
from felix.search import interface
from felix.space import legality
from felix.tir import grammar
from felix.tuning import options as options_module

if TYPE_CHECKING:
    from felix.search import base
    from felix.space.sketch import Sketch
    from felix.task import Task

#: Why a sketch has no legal schedule; None if it has.
MakeFormulas: TypeAlias = "Callable[[Sketch], str | None]"


class TaskSearch:
    """A task by its `index` in a run. `open` makes its sketches and its search."""

    def __init__(self, index: int, task: Task) -> None:
        self.index = index
        self.task = task
        self._search: base.BaseSearch | None = None
        #: those with legal schedules; a search counts in this list
        self.sketches: list[Sketch] = []
        #: how the search counts an open sketch, by its index
        self.positions: dict[int, int] = {}
        #: those that `open` left to `open_rest`
        self.unopened: Sequence[Sketch] = []

    @property
    def is_open(self) -> bool:
        """Whether there are sketches and a search."""
        return self._search is not None

    @property
    def search(self) -> base.BaseSearch:
        """The search of an open task."""
        assert self._search is not None, "the task is not open"
        return self._search

    def open(
        self,
        make_search: options_module.MakeSearch,
        model: interface.CostModels,
        seed: int,
        has_templates: bool = True,
        templates_first: bool = False,
        make_formulas: MakeFormulas = legality.make_formulas,
    ) -> list[str]:
        """Make the sketches and the search; says which sketches are left out and why.

        Args:
            make_search, model, seed: of the search.
            has_templates: whether kernels of templates are searched, too.
            templates_first: where there are templates, leave traces, whose formulas take a
                hundred times as long, to `open_rest`.
            make_formulas: makes those of a sketch, or knows what making them gave elsewhere.

        Raises:
            NoDesignSpace: the task has no sketch with legal schedules.
        """
        from felix.space import diversity

        left_out: list[str] = []
        try:
            sketches = sketches_of(self.task, left_out.append, has_templates)
        except errors.UnsupportedSchedule as error:
            raise errors.NoDesignSpace(str(error)) from error
        except grammar.TVM_FAILURES as error:
            raise errors.NoDesignSpace(
                f"{self.task.name}: TVM cannot schedule the program: {grammar.first_line(error)}"
            ) from error
        templates, traces = by_kind(diversity.searched(sketches))
        left_out += self._take_legal(templates, make_formulas)
        if not templates_first or not self.sketches:
            left_out += self._take_legal(traces, make_formulas)
            traces = []
        if not self.sketches:
            raise errors.NoDesignSpace(
                "; ".join(left_out) or f"{self.task.name} has no design space for this target"
            )
        self.unopened = traces
        task_seed = int(np.random.SeedSequence([seed, self.index]).generate_state(1)[0])
        self._search = make_search(self.sketches, model, task_seed)
        return left_out

    def open_rest(self, make_formulas: MakeFormulas = legality.make_formulas) -> list[str]:
        """Let the search have the sketches that `open` left out for now; says which have no
        legal schedule, and why."""
        n_open = len(self.sketches)
        left_out = self._take_legal(self.unopened, make_formulas)
        self.unopened = []
        self.search.extend(self.sketches[n_open:])
        return left_out

    def _take_legal(self, sketches: Sequence[Sketch], make_formulas: MakeFormulas) -> list[str]:
        """Take in those with legal schedules; says which have none, and why."""
        left_out = []
        for sketch in sketches:
            failure = make_formulas(sketch)
            if failure is not None:
                left_out.append(f"{self.task.name}: sketch {sketch.index} left out: {failure}")
                continue
            self.positions[sketch.index] = len(self.sketches)
            self.sketches.append(sketch)
        return left_out


def by_kind(sketches: Sequence[Sketch]) -> tuple[list[Sketch], list[Sketch]]:
    """(those of templates, those of traces).

    A search counts its sketches in this order, so that those of traces may join it later.
    """
    from felix.space import template_sketch

    kinds: tuple[list[Sketch], list[Sketch]] = [], []
    for sketch in sketches:
        kinds[not isinstance(sketch, template_sketch.TemplateSketch)].append(sketch)
    return kinds


def sketches_of(
    task: Task, on_left_out: Callable[[str], None] | None = None, has_templates: bool = True
) -> Sequence[Sketch]:
    """All sketches of a task that can be modelled, those of templates included if wished."""
    from felix.space import sketch as sketching

    if has_templates:
        return sketching.sketches(task, on_left_out=on_left_out)
    return sketching.trace_sketches(task, on_left_out=on_left_out)
