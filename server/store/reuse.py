"""What earlier jobs already measured, for a new job of the same programs.

Three things may happen to a new job, tried in this order:

- It is *answered*: an earlier job of the same programs, target, strategy, seed and versions spent
  at least its budget, so it ends at once with that job's artifact, made its own. A network is
  answered by one of the same file, whose parameters are the same, with both artifacts.
- It *starts* from measurements: those of its tasks that jobs of the same versions measured on one
  device are copied and count as its trials. A task whose share of the budget they cover is
  settled: it costs nothing more.
- It starts from *schedules*: measurements of other versions, other devices of the kind or an
  imported database say which schedules were fast; the tuner measures those first.

A task that no job measured starts from the fastest schedules of its family, the same operator with
other extents, as the tuner adapts them.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy import orm

from server import states
from server.database import columns, models
from server.store import (
    answered_bundle,
    artifacts,
    blobs,
    events,
    jobs,
    networks,
    rows,
    statements,
    trials,
)

#: Software whose versions must be equal for latencies to be comparable.
COMPARED_VERSIONS = ("felix", "apache-tvm", "apache-tvm-ffi")

#: Newest earlier tasks that are considered.
MOST = 500
#: Newest tasks of a family from whose schedules one begins.
MOST_SIMILAR = 4

_S = states.State


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A new job and where its reuse may come from."""

    job_id: int
    new: jobs.NewJob
    #: of the software that reads the workload
    versions: Mapping[str, str]
    #: exact keys of devices whose tuners are alive: only these can go on with measurements
    device_keys: Collection[str]
    #: the only project whose measurements it may take
    project: str
    #: has the artifacts
    store: blobs.BlobStore


@dataclasses.dataclass(frozen=True, slots=True)
class SimilarTask:
    """A task of the same operator with other extents, and its fastest schedule."""

    #: `felix.Task.to_json`
    program: str
    #: what it was measured for
    resolved_target: str
    #: a line of `felix.database.records`
    record: str


@dataclasses.dataclass(frozen=True, slots=True)
class _Earlier:
    """A task of an earlier job that measured something."""

    job: models.Job
    task: models.Task


def apply(tx: orm.Session, request: Request) -> None:
    """Let a new queued job take what earlier jobs measured, if there is anything."""
    earlier = _earlier_tasks(tx, request)
    same = [each for each in earlier if _is_comparable(each.job, request)]
    answer = _answer(tx, request, same)
    if answer is not None and _finish(tx, request, *answer):
        return
    copied = _start(tx, request, same)
    if copied:
        return
    _name_schedules(tx, request, earlier)


def similar(tx: orm.Session, job_id: int, limit: int = 20) -> list[rows.Job]:
    """Other jobs of the same operator or with a program of this job, newest first.

    Raises:
        NotFound: there is no such job.
    """
    job, row = jobs.get(tx, job_id), models.Job
    programs = sa.select(models.Task.program_key).where(
        models.Task.job_id == job_id, models.Task.program_key.is_not(None)
    )
    sharing = sa.select(models.Task.job_id).where(models.Task.program_key.in_(programs))
    is_similar: sa.ColumnElement[bool] = row.id.in_(sharing)
    if job.kind == "operator":
        is_similar = sa.or_(is_similar, sa.and_(row.kind == job.kind, row.op == job.op))
    query = sa.select(row).where(row.id != job_id, is_similar)
    return jobs.as_rows(tx, list(tx.scalars(query.order_by(row.id.desc()).limit(limit))))


def known_schedules(tx: orm.Session, job_id: int, number: int) -> list[str]:
    """Records (`felix.database.records`) of the task that a task of this job starts from."""
    source = _source(tx, job_id, number)
    if source is None:
        return []
    trial = models.Trial
    query = sa.select(trial.record).where(
        trial.job_id == source[0], trial.task == source[1], trial.latency_us.is_not(None)
    )
    return list(tx.scalars(query.order_by(trial.latency_us, trial.number).limit(MOST)))


def known_imports(tx: orm.Session, job_id: int, number: int) -> list[rows.ImportedSchedule]:
    """Imported schedules of the task that a task of this job starts from, fastest first."""
    source = _source(tx, job_id, number)
    if source is None:
        return []
    row = models.ImportedSchedule
    query = sa.select(row).where(row.job_id == source[0], row.task == source[1])
    return [rows.ImportedSchedule.of(each) for each in tx.scalars(query.order_by(row.number))]


def known_similar(tx: orm.Session, job_id: int, number: int) -> list[SimilarTask]:
    """The newest tasks of a task's family in its project, of its kind of device, with a result.

    Of each program there is one.
    """
    own, own_job = tx.get(models.Task, (job_id, number)), jobs.get(tx, job_id)
    if own is None or own.family is None:
        return []
    kind = own_job.target_key.partition("/")[0]
    job, task, trial = models.Job, models.Task, models.Trial
    newest = sa.func.max(job.id).label("newest")
    chosen = (
        sa.select(task.program_key, newest)
        .join(job, task.job_id == job.id)
        .where(
            task.family == own.family,
            task.program_key != own.program_key,
            task.best_trial.is_not(None),
            job.state.in_(states.ENDED),
            jobs.is_for(kind),
            job.reused_from.is_(None),
            job.resolved_target.is_not(None),
            job.project == own_job.project,
        )
        .group_by(task.program_key)
        .order_by(newest.desc())
        .limit(MOST_SIMILAR)
        .subquery()
    )
    same = sa.and_(task.job_id == chosen.c.newest, task.program_key == chosen.c.program_key)
    query = (
        sa.select(task.program, job.resolved_target, trial.record)
        .join(chosen, same)
        .join(job, job.id == task.job_id)
        .join(trial, sa.and_(trial.job_id == job.id, trial.number == task.best_trial))
        .order_by(job.id.desc(), task.number)
        .limit(MOST_SIMILAR)
    )
    return [
        SimilarTask(program, str(resolved_target), record)
        for program, resolved_target, record in tx.execute(query)
    ]


def _source(tx: orm.Session, job_id: int, number: int) -> tuple[int, int] | None:
    """Job and number of the task of the same program that a task starts from."""
    task = tx.get(models.Task, (job_id, number))
    if task is None or task.reused_from is None:
        return None
    where = (models.Task.job_id == task.reused_from, models.Task.program_key == task.program_key)
    source_number = tx.scalar(sa.select(models.Task.number).where(*where).limit(1))
    return None if source_number is None else (task.reused_from, source_number)


def _earlier_tasks(tx: orm.Session, request: Request) -> list[_Earlier]:
    """Tasks of ended jobs with one of the programs, of the same kind of device, newest first."""
    keys = [task.program_key for task in request.new.tasks if task.program_key is not None]
    if not keys:
        return []
    kind = request.new.target_key.partition("/")[0]
    job, task = models.Job, models.Task
    query = (
        sa.select(job, task)
        .join(task, task.job_id == job.id)
        .where(
            task.program_key.in_(keys),
            job.id != request.job_id,
            job.state.in_(states.ENDED),
            jobs.is_for(kind),
            task.best_us.is_not(None),
            job.reused_from.is_(None),
            job.project == request.project,
        )
        .order_by(job.id.desc(), task.number)
        .limit(MOST)
    )
    return [_Earlier(job, task) for job, task in tx.execute(query)]


def _is_comparable(earlier: models.Job, request: Request) -> bool:
    """Whether latencies of the earlier job are what the new one would measure."""
    new = request.new
    is_same_device = f"{earlier.target_key}/".startswith(f"{new.target_key}/")
    new_settings = (new.target, new.strategy, new.seed)
    measured, now = earlier.versions or {}, request.versions
    return (
        earlier.resolved_target is not None
        and is_same_device
        and (earlier.target, earlier.strategy, earlier.seed) == new_settings
        and all(measured.get(name, "") == now.get(name) for name in COMPARED_VERSIONS)
    )


def _answer(
    tx: orm.Session, request: Request, same: Sequence[_Earlier]
) -> tuple[models.Job, list[models.Artifact]] | None:
    """The newest job of exactly these tasks that spent at least the new one's budget."""
    kinds = ["bundle"]
    if networks.name_of(tx, request.job_id) is not None:
        kinds.append("network")
    for job in {each.job.id: each.job for each in same}.values():
        if job.state != _S.SUCCEEDED or not _is_enough(job, request.new):
            continue
        job_id = job.id
        if not _lock(tx, [job_id]):
            continue
        if not _has_tasks(tx, job, request.new):
            continue
        made = models.Artifact
        files = sa.select(made).where(made.job_id == job_id, made.kind.in_(kinds))
        made_files = list(tx.scalars(files.order_by(made.kind)))
        if len(made_files) == len(kinds) and (len(kinds) == 1 or _same_model(job, request.new)):
            return job, made_files
    return None


def _has_tasks(tx: orm.Session, job: models.Job, new: jobs.NewJob) -> bool:
    """Whether a job is of exactly the new one's tasks, and its artifact has all of them, or all
    that its seconds had time for, if the new one has no more."""
    task = models.Task
    is_left_out = sa.and_(task.best_us.is_not(None), task.source.is_(None))
    query = sa.select(task.program_key, task.weight, is_left_out).where(task.job_id == job.id)
    found = tx.execute(query.order_by(task.number)).all()
    expected = [(each.program_key, each.weight) for each in new.tasks]
    has_all = job.seconds is None or not any(left_out for _, _, left_out in found)
    return [(key, weight) for key, weight, _ in found] == expected and (
        has_all or _had_seconds(job, new)
    )


def _same_model(job: models.Job, new: jobs.NewJob) -> bool:
    """Whether two jobs are of one file, inputs and contenders: so the parameters are equal."""
    return all(
        job.workload.get(name) == new.workload.get(name)
        for name in ("sha256", "shapes", "values", "pytorch")
    )


def _lock(tx: orm.Session, job_ids: Collection[int]) -> bool:
    """Whether all these jobs are still there; they are not deleted before the transaction ends."""
    query = sa.select(models.Job.id).where(models.Job.id.in_(job_ids)).order_by(models.Job.id)
    return len(tx.scalars(query.with_for_update()).all()) == len(set(job_ids))


def _is_enough(job: models.Job, new: jobs.NewJob) -> bool:
    """Whether the job searched at least as long as the new one asks for."""
    if job.reason == "exhausted" or (job.reason == "converged" and job.options == new.options):
        return True
    return _had_seconds(job, new) or (new.trials is not None and job.n_trials >= new.trials)


def _had_seconds(job: models.Job, new: jobs.NewJob) -> bool:
    """Whether the job had the seconds that the new one asks for: its own, if it used them up."""
    had_s = job.seconds if job.reason == "seconds" and job.seconds else job.elapsed_s
    return new.seconds is not None and had_s >= new.seconds


def _finish(
    tx: orm.Session, request: Request, source: models.Job, files: Sequence[models.Artifact]
) -> bool:
    """End a queued job with the results and artifacts of an earlier one, if they are usable."""
    job_id = request.job_id
    same = (
        "target_key",
        "resolved_target",
        "best_us",
        "unscheduled_us",
        "n_unscheduled",
        "versions",
        "model",
    )
    changes: dict[str, Any] = {name: getattr(source, name) for name in same}
    changes["reason"] = "reused"
    ended = rows.Job(**vars(jobs.get(tx, job_id)) | changes | {"reused_from": source.id})
    copied = [
        answered_bundle.make(tx, request.store, ended, rows.Artifact.of(file)) for file in files
    ]
    usable = [file for file in copied if file is not None]
    if len(usable) < len(files):
        return False
    _copy_tasks(tx, job_id, source.id)
    if len(files) > 1:
        networks.copy(tx, job_id, source.id)
    for file in usable:
        artifacts.attach(tx, job_id, file)
    events.append(tx, job_id, events.Type.REUSED, {"jobs": [source.id], "n_trials": 0})
    job = events.lock_job(tx, job_id)
    events.change_state(tx, job, _S.STOPPING, started_at=columns.db_now(), reused_from=source.id)
    reason = {"reason": "reused", "job": source.id}
    events.change_state(tx, job, _S.SUCCEEDED, reason, **changes)
    return True


def _copy_tasks(tx: orm.Session, job_id: int, source_id: int) -> None:
    """Results and code of the tasks of an earlier job with the same tasks."""
    names = (
        "task_key",
        "n_sketches",
        "best_us",
        "unscheduled_us",
        "unscheduled_message",
        "ships_unscheduled",
        "schedule",
        "source",
        "assembly",
        "decisions",
    )
    task = models.Task
    query = sa.select(task.number, *(getattr(task, name) for name in names))
    for number, *values in tx.execute(query.where(task.job_id == source_id)).all():
        copied = dict(zip(names, values, strict=True))
        copied |= {"reused_from": source_id, "settled": True}
        statements.update(tx, task, task.job_id == job_id, task.number == number, **copied)


def _start(tx: orm.Session, request: Request, same: Sequence[_Earlier]) -> bool:
    """Copy what was measured of the job's tasks on one device; whether there was anything."""
    by_device: dict[tuple[str, str], dict[str, _Earlier]] = {}
    for each in same:
        key, resolved = each.job.target_key, each.job.resolved_target
        if key not in request.device_keys or resolved is None or not each.task.n_trials:
            continue
        of_program = by_device.setdefault((key, resolved), {})
        program = str(each.task.program_key)
        best = of_program.get(program)
        if best is None or best.task.n_trials < each.task.n_trials:
            of_program[program] = each
    if not by_device:
        return False

    def coverage(device: tuple[str, str]) -> tuple[int, int]:
        measured = by_device[device].values()
        return len(measured), sum(each.task.n_trials for each in measured)

    device = max(by_device, key=coverage)
    of_program = by_device[device]
    if not _lock(tx, [each.job.id for each in of_program.values()]):
        return False
    _copy_measurements(tx, request, device, of_program)
    return True


def _copy_measurements(
    tx: orm.Session, request: Request, device: tuple[str, str], of_program: Mapping[str, _Earlier]
) -> None:
    new, job = request.new, events.lock_job(tx, request.job_id)
    job.target_key, job.resolved_target = device
    job.versions = next(iter(of_program.values())).job.versions
    share = math.inf if new.trials is None else math.ceil(new.trials / len(new.tasks))
    sources = []
    for number, new_task in enumerate(new.tasks):
        earlier = of_program.get(str(new_task.program_key))
        if earlier is None:
            continue
        is_settled = earlier.task.n_trials >= share or earlier.job.reason == "exhausted"
        trials.copy(tx, job, number, (earlier.job.id, earlier.task.number))
        task = tx.get_one(models.Task, (job.id, number))
        task.reused_from, task.settled = earlier.job.id, is_settled
        sources.append(earlier.job.id)
    tx.flush()
    payload = {"jobs": sorted(set(sources)), "n_trials": job.n_trials}
    events.append(tx, job.id, events.Type.REUSED, payload)


def _name_schedules(tx: orm.Session, request: Request, earlier: Sequence[_Earlier]) -> None:
    """Say for each task which earlier one knows fast schedules of its program."""
    sources = []
    for number, new_task in enumerate(request.new.tasks):
        matching = [each for each in earlier if each.task.program_key == new_task.program_key]
        if not matching or new_task.program_key is None:
            continue
        fastest = min(matching, key=lambda each: each.task.best_us or math.inf)
        tx.get_one(models.Task, (request.job_id, number)).reused_from = fastest.job.id
        sources.append(fastest.job.id)
    tx.flush()
    if sources:
        payload = {"jobs": sorted(set(sources)), "n_trials": 0}
        events.append(tx, request.job_id, events.Type.REUSED, payload)
