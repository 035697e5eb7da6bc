"""One job: overview, trials, search, code and log, each with an address of its own.

All of them share a head with the state, the figures and what can be done.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Set
from typing import Annotated, Any

import fastapi
import markupsafe
from sqlalchemy import orm
from starlette import responses

from server import actions, errors, states, teams
from server.dashboard import chart_data, formats, render
from server.dashboard.pages import access
from server.store import (
    artifacts,
    events,
    jobs,
    networks,
    plot_points,
    progress,
    reuse,
    rows,
    trials,
)
from server.store import tuners as store_tuners
from server.web import auth, decisions, request_bodies

router = render.router("/dashboard/jobs/{job_id}")

TRIALS_LIMIT = 100
LOG_LIMIT = 200
ROUNDS_LIMIT = 1000
SIMILAR_LIMIT = 8

_S = states.State

#: What can be done in which states: verb, label, states, what it means.
ACTIONS: tuple[tuple[str, str, Set[states.State], str], ...] = (
    ("pause", "Pause", {_S.QUEUED, _S.RUNNING}, "Stop tuning for now; everything measured stays"),
    ("resume", "Resume", {_S.PAUSED, _S.PAUSING}, "Go on with it"),
    (
        "stop",
        "Stop early",
        {_S.RUNNING, _S.PAUSING, _S.PAUSED},
        "End now, with the artifact of the best schedules so far",
    ),
    (
        "cancel",
        "Cancel",
        set(_S) - states.ENDED - {_S.CANCELLING},
        "Drop it: what was measured stays readable, there is no artifact",
    ),
    ("retry", "Retry", {_S.FAILED, _S.CANCELLED}, "Go on with all it has measured"),
)

#: Parts of the time a person waits, in words; `felix.tuning.pacing.Breakdown`.
PARTS = {
    "start_s": "Start-up and cost model",
    "extract_s": "Sketches and formulas",
    "search_s": "Search",
    "schedule_s": "Schedules by TVM",
    "train_s": "Training the cost model",
    "build_wait_s": "Waiting for builds",
    "measure_s": "Checking and timing",
    "save_s": "Checkpoints",
}

ERRORS = ("build", "launch", "timeout", "wrong_result", "infrastructure")

_Task = Annotated[int | None, fastapi.Query(ge=0, le=request_bodies.MAX_INT)]


@router.get("")
def overview(job_id: request_bodies.Id, viewer: render.Viewer) -> fastapi.Response:
    """Convergence, tasks, what ships of a network, where the time went, files."""
    with viewer.read() as tx:
        head = _head(tx, viewer, job_id)
        files = artifacts.of_job(tx, job_id)
        network = networks.of_job(tx, job_id, head["tasks"])
        chart = chart_data.convergence(tx, head["job"], head["tasks"], network)
        similar = reuse.similar(tx, job_id, SIMILAR_LIMIT)
    return viewer.page(
        "job/overview.html",
        tab="overview",
        **head,
        chart=chart,
        network=network,
        artifacts=files,
        similar=similar,
        can_save=viewer.can("submit") and teams.can_be_template(head["job"]),
        parts=time_parts(head["job"].breakdown, head["job"].elapsed_s),
    )


@router.get("/trials")
def trials_page(
    job_id: request_bodies.Id,
    viewer: render.Viewer,
    show: Annotated[str, fastapi.Query(max_length=40)] = "",
    task: Annotated[str, fastapi.Query(max_length=10)] = "",
    after: request_bodies.After = None,
) -> fastapi.Response:
    """Trials by number; `show` is best, ok, failed or an error class."""
    chosen = trials.Filter(
        task=int(task) if task.isdecimal() else None,
        ok={"ok": True, "failed": False}.get(show),
        error=show if show in ERRORS else None,
        best_only=show == "best",
    )
    with viewer.read() as tx:
        head = _head(tx, viewer, job_id)
        page = trials.page(tx, job_id, chosen, TRIALS_LIMIT, after or 0)
        failed = trials.error_counts(tx, job_id)
    return viewer.page(
        "job/trials.html",
        tab="trials",
        **head,
        trials=page.items,
        next=page.next,
        after=after,
        newest=max(0, head["job"].n_trials - TRIALS_LIMIT),
        show=show,
        chosen_task=chosen.task,
        failed=failed,
        errors=ERRORS,
    )


@router.get("/trials/{number}")
def trial_page(
    job_id: request_bodies.Id, number: request_bodies.Id, viewer: render.Viewer
) -> fastapi.Response:
    """One trial with all that is known of it."""
    with viewer.read() as tx:
        head = _head(tx, viewer, job_id)
        trial = trials.get(tx, job_id, number)
    task = next(each for each in head["tasks"] if each.number == trial.task)
    return viewer.page(
        "job/trial.html",
        tab="trials",
        **head,
        trial=trial,
        task=task,
        decisions=decisions.named([task], trial),
    )


@router.get("/search")
def search_page(
    job_id: request_bodies.Id, viewer: render.Viewer, task: _Task = None
) -> fastapi.Response:
    """Predicted against measured, descents, rounds, training."""
    with viewer.read() as tx:
        head = _head(tx, viewer, job_id)
        number = _existing(head["tasks"], task)
        rounds = progress.rounds(tx, job_id, number, -1, ROUNDS_LIMIT)
        trainings = progress.trainings(tx, job_id)
        pairs = plot_points.predicted(tx, job_id, number, 2000)
    predicted_us, measured_us = [p.predicted_us for p in pairs], [p.latency_us for p in pairs]
    return viewer.page(
        "job/search.html",
        tab="search",
        **head,
        number=number,
        chart=chart_data.search(head["job"], number, pairs, rounds),
        rounds=rounds,
        trainings=trainings,
        n_pairs=len(pairs),
        rank_correlation=plot_points.rank_correlation(predicted_us, measured_us),
    )


@router.get("/code")
def code_page(
    job_id: request_bodies.Id, viewer: render.Viewer, task: _Task = None
) -> fastapi.Response:
    """TVMScript, generated source and assembly of a task's best schedule."""
    with viewer.read() as tx:
        head = _head(tx, viewer, job_id)
        number = _existing(head["tasks"], task)
        schedule, source, assembly = jobs.code(tx, job_id, number)
    language = formats.language_of(source or "", head["job"].target)
    is_gpu = language == "cuda"
    listings = [
        Listing("schedule", "Schedule (TVMScript)", "python", schedule or ""),
        Listing(
            "source", f"Generated code ({'CUDA' if is_gpu else 'LLVM IR'})", language, source or ""
        ),
        Listing(
            "assembly", "PTX" if is_gpu else "Assembly", "ptx" if is_gpu else "gas", assembly or ""
        ),
    ]
    return viewer.page(
        "job/code.html",
        tab="code",
        **head,
        number=number,
        listings=[listing for listing in listings if listing.text],
    )


@router.get("/log")
def log_page(
    job_id: request_bodies.Id,
    viewer: render.Viewer,
    all_: Annotated[bool, fastapi.Query(alias="all")] = False,
    before: request_bodies.After = None,
) -> fastapi.Response:
    """Events, newest first; without `all`, those that a person reads."""
    kinds = () if all_ else tuple(kind for kind in events.Type if kind not in events.FREQUENT)
    with viewer.read() as tx:
        head = _head(tx, viewer, job_id)
        newest = newest_events(tx, job_id, before, kinds)
    return viewer.page(
        "job/log.html",
        tab="log",
        **head,
        events=newest[:LOG_LIMIT],
        more=newest[LOG_LIMIT - 1].seq if len(newest) > LOG_LIMIT else None,
        all=all_,
        before=before,
    )


@router.post("/{verb}")
def act(
    job_id: request_bodies.Id, verb: str, viewer: render.Viewer, _: access.Form
) -> fastapi.Response:
    """Pause, resume, stop, cancel or retry, then show the job."""
    if verb not in set(actions.Action):
        raise errors.NotFound("there is no such action")
    viewer.need("submit")
    actions.move_job(viewer, job_id, actions.Action(verb))
    return responses.RedirectResponse(f"/dashboard/jobs/{job_id}", 303)


def newest_events(
    tx: orm.Session, job_id: int, before: int | None, kinds: tuple[events.Type, ...]
) -> list[rows.Event]:
    """One more than a page of events before a sequence number, newest first."""
    end = (events.last(tx, job_id) or 0) + 1 if before is None else before
    newest: list[rows.Event] = []
    while end > 1 and len(newest) <= LOG_LIMIT:
        begin = max(0, end - 1 - 4 * LOG_LIMIT)
        part = events.after(tx, job_id, begin, 4 * LOG_LIMIT, kinds)
        newest.extend(reversed([event for event in part if event.seq < end]))
        end = begin + 1
    return newest[: LOG_LIMIT + 1]


@dataclasses.dataclass(frozen=True, slots=True)
class Listing:
    """A program to show."""

    id: str
    label: str
    language: str
    text: str

    @property
    def marked(self) -> markupsafe.Markup:
        """As HTML, with its tokens marked."""
        return formats.marked(self.text, self.language)

    @property
    def n_lines(self) -> int:
        """Lines of the program."""
        return len(self.text.splitlines())


def time_parts(
    breakdown: Mapping[str, Any] | None, elapsed_s: float
) -> list[tuple[str, float, float]]:
    """Label, seconds and share of all, the longest first; what no part claims comes last."""
    known = {
        label: float(breakdown.get(name) or 0.0)
        for name, label in PARTS.items()
        if breakdown is not None
    }
    if not any(known.values()):
        return []
    total = max(float((breakdown or {}).get("total_s") or elapsed_s), sum(known.values()))
    parts = sorted(known.items(), key=lambda item: -item[1])
    parts.append(("Other", total - sum(known.values())))
    return [(label, spent, spent / total) for label, spent in parts if spent >= 0.05]


def allowed(viewer: auth.Caller, job: rows.Job) -> list[tuple[str, str, str]]:
    """What this viewer can do with the job now: verb, label, meaning."""
    if not actions.may_change(viewer, job):
        return []
    return [
        (verb, label, meaning)
        for verb, label, where, meaning in ACTIONS
        if job.state in where and not (verb == "stop" and job.n_trials == 0)
    ]


def _head(tx: orm.Session, viewer: auth.Caller, job_id: int) -> dict[str, Any]:
    """What all pages of a job show."""
    job = jobs.get(tx, job_id)
    tuners: list[rows.Worker] = []
    if job.state in (_S.QUEUED, _S.STOPPING):
        tuners = store_tuners.every(tx, viewer.services.settings.stale_s)
    return {
        "job": job,
        "tasks": jobs.tasks(tx, job_id),
        "actions": allowed(viewer, job),
        "may_change": actions.may_change(viewer, job),
        "is_live": job.state not in states.ENDED,
        "waits_for": store_tuners.missing(tuners, job.target_key),
    }


def _existing(tasks: list[rows.Task], number: int | None) -> int:
    numbers = [task.number for task in tasks]
    if number is not None and number not in numbers:
        raise errors.NotFound(f"the job has no task {number}")
    return numbers[0] if number is None else number
