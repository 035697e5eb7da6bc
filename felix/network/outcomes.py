"""What is known of a network's tasks: looked up, tuned where nothing is known, and stored."""

from __future__ import annotations

import dataclasses
import hashlib
import pathlib
import shutil
import tempfile
import time
from collections.abc import Mapping, Sequence

from felix import errors
from felix.builder import payload
from felix.database import databases, session, store
from felix.database import outcome as known_outcomes
from felix.database.outcome import KnownResult, Schedule, decided
from felix.network.curve import Curve, Point
from felix.network.deadline import Deadline
from felix.runner import protocol
from felix.space.sketch import Sketch
from felix.task import Task
from felix.tuning import options as tune_options
from felix.tuning import results
from felix.tuning import tune as tuning


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """How the unknown tasks of a network are tuned; fields as those of `felix.tune`.

    `begun_s` is when the whole call began, by `time.monotonic`. With `improve` known tasks are
    tuned, too, from their best schedule on. `pytorch`: whether
    PyTorch's operators contend with what tuning gives. `database`: whose schedules are measured
    first.

    Raises:
        TuningError: there is no such budget or seed.
    """

    trials: int | None = None
    seconds: float | None = None
    seed: int = 0
    options: tune_options.TuneOptions = dataclasses.field(default_factory=tune_options.TuneOptions)
    out: pathlib.Path | None = None
    on_event: tune_options.OnEvent | None = None
    improve: bool = False
    pytorch: bool = True
    begun_s: float = dataclasses.field(default_factory=time.monotonic)
    database: databases.Database | None = None

    def __post_init__(self) -> None:
        tune_options.Budget(
            trials=self.trials, seconds=self.seconds, seed=self.seed, strategy="gradient"
        )


@dataclasses.dataclass(frozen=True, slots=True)
class Outcomes:
    """What is known of the tasks by their keys, and how it came about.

    `reason` is why tuning ended, None if nothing had to be tuned. Of `passing` tasks the machine
    failed, not their candidates. `curve` is the network's latency while it was tuned.
    """

    by_key: Mapping[str, KnownResult]
    known: frozenset[str]
    reason: str | None
    elapsed_s: float
    passing: frozenset[str] = frozenset()
    curve: Sequence[Point] = ()


#: What is known where there was no time to look.
NOTHING = Outcomes({}, frozenset(), "seconds", 0.0)


def gather(tasks: Sequence[Task], known: store.Store, request: Request) -> Outcomes:
    """Look up every task, tune those of which nothing is known, and store what that gave.

    A run that is killed is resumed by the next call for the same tasks. One that is interrupted
    stores nothing, so that it is resumed, too. While another process has the folder of these tasks
    a run has one that ends with it. A failure that was this machine's is not stored: the next call
    tries again.

    Raises:
        FelixError: tuning cannot start, or a file cannot be read or written.
    """
    stored = _stored(tasks, known)
    unknown = [task for task in tasks if request.improve or task.key not in stored]
    if not unknown:
        return Outcomes(stored, frozenset(stored), None, 0.0)
    folder = request.out or _session_folder(known, unknown, request)
    progress = _curve(tasks, unknown, stored, request)
    request = dataclasses.replace(request, on_event=progress)
    try:
        tuned, passing, reason, elapsed_s = _tune(unknown, known, request, folder)
    except errors.FolderInUse:
        if request.out is not None:
            raise
        with tempfile.TemporaryDirectory(dir=folder.parent) as own:
            tuned, passing, reason, elapsed_s = _tune(unknown, known, request, pathlib.Path(own))
    else:
        if reason != "interrupted" and request.out is None:
            shutil.rmtree(folder, ignore_errors=True)
    lasting = set() if reason == "interrupted" else tuned.keys() - passing
    found = {
        task.key: known.add(task, tuned[task.key])
        if task.key in lasting
        else _faster(stored.get(task.key), tuned[task.key])
        for task in unknown
        if task.key in tuned
    }
    return Outcomes(
        {**stored, **found},
        frozenset(stored),
        reason,
        elapsed_s,
        frozenset(passing),
        tuple(progress.points),
    )


def _curve(
    tasks: Sequence[Task],
    unknown: Sequence[Task],
    stored: Mapping[str, KnownResult],
    request: Request,
) -> Curve:
    """The curve of a run, which begins at the faster of PyTorch and what is known."""
    latencies_us = dict(request.options.rivals_us)
    for key, known in stored.items():
        for us in (known.tuned_us, known.default_us):
            if us is not None:
                latencies_us[key] = min(us, latencies_us.get(key, us))
    return Curve(tasks, unknown, latencies_us, request.begun_s, request.on_event)


def within(
    deadline: Deadline,
    n_groups: int,
    tasks: Sequence[Task],
    known: store.Store,
    request: Request,
    rivals_us: Mapping[str, float],
) -> Outcomes:
    """`gather` in the share of a call's seconds that tuning has; what is known where that is none.

    Args:
        deadline: of the call.
        n_groups: that are to be compared and built after tuning.
        tasks, known, request: as `gather` takes them; `request` without its seconds.
        rivals_us: what runs tasks if tuning finds nothing faster (`TuneOptions`).
    """
    size = n_groups, tasks[0].target.kind.name if tasks else "llvm"
    if not deadline.can_tune(*size):
        return known_only(tasks, known)
    seconds = None if deadline.seconds is None else deadline.tuning_s(*size)
    # on a CPU small programs of TVM are among the rivals, and large ones have one thread
    baseline = request.options.baseline and not (rivals_us and size[1] == "llvm")
    options = dataclasses.replace(request.options, rivals_us=rivals_us, baseline=baseline)
    return gather(tasks, known, dataclasses.replace(request, seconds=seconds, options=options))


def known_only(tasks: Sequence[Task], known: store.Store) -> Outcomes:
    """What is known of tasks, none of which there is time to tune."""
    stored = _stored(tasks, known)
    has_all = all(task.key in stored for task in tasks)
    return Outcomes(stored, frozenset(stored), None if has_all else "seconds", 0.0)


def _stored(tasks: Sequence[Task], known: store.Store) -> dict[str, KnownResult]:
    return {task.key: result for task in tasks if (result := known.find(task)) is not None}


def _faster(stored: KnownResult | None, tuned: KnownResult) -> KnownResult:
    return tuned if stored is None else store.faster(stored, tuned)


def _session_folder(known: store.Store, tasks: Sequence[Task], request: Request) -> pathlib.Path:
    """Where a run without an output folder keeps its session: the same for the same tasks, also
    where an earlier version began it by the strategy `local`."""

    def folder(strategy: str) -> pathlib.Path:
        identity = session.identity(tasks, strategy, request.seed)
        digest = hashlib.sha256(repr(dataclasses.asdict(identity)).encode()).hexdigest()[:24]
        return known.path.with_name(known.path.name + ".sessions") / digest

    earlier = folder("local")
    return earlier if earlier.exists() else folder(request.options.default_strategy(tasks[0]))


def _tune(
    tasks: Sequence[Task], known: store.Store, request: Request, folder: pathlib.Path
) -> tuple[dict[str, KnownResult], set[str], str, float]:
    """(outcomes by key, keys of those that may be others next time, why tuning ended, seconds) of
    tasks that get trials."""

    def first(task: Task, sketches: Sequence[Sketch]) -> Sequence[tuple[str, Sequence[int]]]:
        same = known.find(task)
        every = [*([] if same is None else [same]), *known.similar(task)]
        others = request.database.schedules(task, sketches) if request.database else []
        return [*known_outcomes.first_schedules(every, sketches), *others]

    chosen = request.options
    if chosen.first_schedules is None:
        chosen = dataclasses.replace(chosen, first_schedules=first)
    chosen = dataclasses.replace(chosen, earlier_seconds_count=False)
    try:
        network = tuning.tune(
            list(tasks),
            request.trials,
            request.seconds,
            request.seed,
            options=chosen,
            out=folder,
            resume=True,
            on_event=request.on_event,
        )
    except (errors.NoDesignSpace, errors.WorkloadError) as error:
        if len(tasks) > 1:
            raise
        # the only task cannot be tuned: no error here, TVM's schedule ships
        return {tasks[0].key: KnownResult(failure=str(error))}, set(), "failed", 0.0
    passing = {result.task.key for result in network.results if _is_passing(result)}
    return of_results(network.results), passing, network.reason, network.breakdown.total_s


def _is_passing(result: results.TuneResult) -> bool:
    """Whether a task has no schedule because of the machine, not of its candidates."""
    infrastructure = protocol.ErrorClass.INFRASTRUCTURE
    return bool(result.records) and all(
        record.measured.error == infrastructure for record in result.records
    )


def of_results(tuned: Sequence[results.TuneResult]) -> dict[str, KnownResult]:
    """What tuning says of tasks, by key; those whose turn never came are left out."""
    outcomes = {result.task.key: _outcome(result) for result in tuned}
    return {key: outcome for key, outcome in outcomes.items() if outcome is not None}


def _outcome(result: results.TuneResult) -> KnownResult | None:
    """What a result says of its task; None if its turn never came."""
    best = result.tuned_or_none
    if best is None:
        if result.skipped is None and not result.records:
            return None
        failure = result.skipped or result.failure()
        return KnownResult(
            default_us=result.unscheduled_us, failure=failure, n_trials=len(result.records)
        )
    return KnownResult(
        tuned_us=best.latency_us,
        program=payload.of(best.program, result.task.target),
        schedule=Schedule(
            sketch_key=best.trial.sketch_key,
            sketch_index=best.sketch_index,
            variant=best.variant,
            decisions=decided(best.variables, best.decisions),
        ),
        default_us=result.unscheduled_us,
        n_trials=len(result.records),
    )
