"""What a tuning run is asked for: tasks, budget, options."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

from felix import errors, events
from felix.measure import locks
from felix.measure.measurer import Measurer
from felix.search import strategies

if TYPE_CHECKING:
    from felix.database import session
    from felix.search import GradientOptions, base, cost_model, interface
    from felix.space.sketch import Sketch
    from felix.task import Task

#: (sketches of a task, its cost models, seed) -> the task's search.
MakeSearch: TypeAlias = "Callable[[Sequence[Sketch], interface.CostModels, int], base.BaseSearch]"
OnEvent: TypeAlias = Callable[[events.Event], None]
#: (task, its sketches) -> (sketch key, decisions), the most promising first; what does not fit
#: the sketches is left out.
FirstSchedules: TypeAlias = (
    "Callable[[Task, Sequence[Sketch]], Sequence[tuple[str, Sequence[int]]]]"
)


class Pool(Protocol):
    """Where candidates of all tasks are measured (`felix.measure.local.LocalPool`)."""

    @property
    def timing_lock(self) -> locks.ReadWriteLock:
        """Held shared while the tuner computes; timing holds it exclusively."""
        ...

    def for_task(self, task: Task) -> Measurer:
        """The measurer of one task."""
        ...

    @property
    def n_devices(self) -> int:
        """Candidates that may be timed at a time."""
        ...

    def close(self) -> None:
        """End all processes."""
        ...


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TuneOptions:
    """How a run works; the defaults suit most."""

    #: Candidates of a round.
    round_size: int = 24
    #: Candidates of a task's first round: few, so that the next ones know what the model is
    #: wrong about.
    first_round_size: int = 8
    #: Share of a round that may still be building or running while the next one is searched.
    #: 0: the search knows all results, and the machine idles meanwhile; 1: it is a round behind.
    lookahead: float = 0.5
    #: Stop when no task has improved for this many of its rounds; None: never.
    patience_rounds: int | None = None
    #: Let what is measured correct the cost model.
    learn: bool = True
    #: Fastest candidates of a task that are measured again, in turns, before one is called best;
    #: 0: none.
    n_remeasured: int = 4
    #: How often each of them is timed, and on a CPU how long all rest in between.
    remeasure_turns: int = 5
    remeasure_pause_s: float = 0.2
    #: Time the unscheduled program, for the speed-up.
    baseline: bool = True
    #: Sizes of the search's rounds.
    search: GradientOptions | None = None
    #: Makes another search than a strategy's.
    make_search: MakeSearch | None = None
    #: Search kernels that templates generate, too.
    templates: bool = True
    #: Processes that search rounds of several tasks on a GPU side by side; 0: none, None: as
    #: many as pay.
    search_processes: int | None = None
    #: How measurements correct the model; fine-tuning options train its weights instead, which
    #: takes seconds a round.
    learning: cost_model.LearningOptions | None = None
    #: GPUs to measure on, where no `pool` is given: `felix.measure.work.LocalOptions`.
    devices: tuple[int, ...] | Literal["all"] = (0,)
    #: Makes the pool from the first task; None: processes on this machine.
    pool: Callable[[Task], Pool] | None = None
    #: Where records and checkpoints go instead of an output folder.
    journal: Callable[[Sequence[Task], session.Identity], session.Journal] | None = None
    #: Keys of tasks that get no trials: their records are enough.
    settled: frozenset[str] = frozenset()
    #: Latencies by keys of tasks of what runs a task if tuning finds nothing faster: only what is
    #: below them is a gain.
    rivals_us: Mapping[str, float] = dataclasses.field(default_factory=dict)
    #: Schedules of a task to measure before the search chooses any: called when it is opened.
    first_schedules: FirstSchedules | None = None
    #: Whether the seconds of a session that is resumed count to those of the run.
    earlier_seconds_count: bool = True
    #: Called many times a second while the run works and waits; True ends it as Ctrl-C does.
    should_stop: Callable[[], bool] | None = None
    #: Called before each round; True ends the run as `should_stop` does, but only once everything
    #: that was submitted is measured.
    should_pause: Callable[[], bool] | None = None

    def open_pool(self, task: Task) -> Pool:
        """The pool of a run whose first task this is."""
        if self.pool is not None:
            return self.pool(task)
        from felix.measure import local

        return local.LocalPool(task, local.LocalOptions(devices=self.devices))

    def default_strategy(self, task: Task) -> str:
        """The strategy of a run that names none: as the sizes are, or the target's."""
        if self.make_search is not None:
            return strategies.CUSTOM
        if self.search is not None:
            return "gradient" if self.search.n_structures else "local"
        return strategies.DEFAULTS[task.target.kind.name]

    def sizes(self, strategy: str) -> GradientOptions:
        """Sizes of the rounds of a strategy.

        Raises:
            TuningError: they are of another one.
        """
        from felix.search import GradientOptions

        chosen = self.search or GradientOptions()
        if strategy == "local":
            return dataclasses.replace(chosen, n_structures=0)
        if not chosen.n_structures:
            raise errors.TuningError("sizes without structures to descend under are of `local`")
        return chosen

    def maker(self, strategy: str) -> MakeSearch:
        """What makes the searches of a run.

        Raises:
            TuningError: the strategy needs `make_search`, or other sizes.
        """
        if self.make_search is not None:
            return self.make_search
        if strategy == strategies.CUSTOM:
            raise errors.TuningError(
                "the search of this session was made by the caller: give `make_search`"
            )
        return making(self.sizes(strategy))


def making(sizes: GradientOptions) -> MakeSearch:
    """What makes searches of such sizes."""
    from felix.search import GradientSearch

    return lambda sketches, model, seed: GradientSearch(sketches, model, sizes, seed)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """When to stop, and everything random."""

    trials: int | None
    seconds: float | None
    seed: int
    strategy: str

    def __post_init__(self) -> None:
        if self.strategy != strategies.CUSTOM and (why := strategies.problem(self.strategy)):
            raise errors.TuningError(why)
        if self.trials is None and self.seconds is None:
            raise errors.TuningError("give a number of trials, of seconds, or both")
        if self.trials is not None and (type(self.trials) is not int or self.trials < 1):
            raise errors.TuningError(f"trials must be a positive integer, got {self.trials!r}")
        if self.seconds is not None and not 0 < self.seconds < 1e9:
            raise errors.TuningError(f"seconds must be a positive number, got {self.seconds!r}")
        if type(self.seed) is not int or self.seed < 0:
            raise errors.TuningError(f"the seed must be an integer >= 0, got {self.seed!r}")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A call of `felix.tune`; see there for the fields. Its tasks are checked (`check`).

    `begun_s` is when it was made, by `time.monotonic`.
    """

    tasks: tuple[Task, ...]
    budget: Budget
    options: TuneOptions
    model: cost_model.ModelLike
    out: pathlib.Path | None
    resume: bool
    on_event: OnEvent
    begun_s: float


def check(tasks: Sequence[Task]) -> None:
    """Refuse what cannot be the tasks of one run.

    Raises:
        TuningError
    """
    from felix.task import Task

    if not tasks:
        raise errors.TuningError("there is nothing to tune: no tasks were given")
    if not all(isinstance(task, Task) for task in tasks):
        raise errors.TuningError("tune takes a felix.Task or a sequence of them")
    if len({task.key for task in tasks}) != len(tasks):
        raise errors.TuningError("a task is given twice: give it once, with a larger weight")
    if len({str(task.target) for task in tasks}) != 1:
        raise errors.TuningError("all tasks of a run must have the same target")
