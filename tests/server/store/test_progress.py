"""What a run leaves in the store: trials and their curve, events, progress, artifacts, choices."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from felix.tuning import results
from server import errors
from server.database import database, fields
from server.store import (
    artifacts,
    blobs,
    control,
    events,
    jobs,
    leases,
    plot_points,
    progress,
    trials,
)
from tests.support import service_fakes


def test_trials_make_the_curve(db: database.Database) -> None:
    job, fence = service_fakes.claimed(db)
    for number, latency_us in enumerate([50.0, None, 60.0, 20.0, 30.0]):
        service_fakes.add(db, fence, service_fakes.new_trial(number, latency_us))
    service_fakes.add(db, fence, service_fakes.new_trial(5, 1.0, checked=False))
    after = service_fakes.get(db, job.id)
    assert (after.n_trials, after.n_failed, after.best_us) == (6, 1, 20.0)
    assert after.measured_s == pytest.approx(6 * 0.25)
    assert after.gflops == pytest.approx(1e6 / 20.0 / 1e3)
    with db.read() as tx:
        points = plot_points.curves(tx, [job.id])[job.id]
        assert [(p.trial, p.best_us) for p in points] == [(1, 50.0), (4, 20.0), (6, 20.0)]
        assert [p.elapsed_s for p in points] == [1.0, 4.0, 6.0]
        assert plot_points.curves(tx, [job.id], 0)[job.id] == points
        assert [t.best_us for t in trials.page(tx, job.id).items] == [50, 50, 50, 20, 20, 20]
        pairs = plot_points.predicted(tx, job.id)
        assert [(p.trial, p.latency_us) for p in pairs] == [
            (1, 50.0),
            (3, 60.0),
            (4, 20.0),
            (5, 30.0),
            (6, 1.0),
        ]
        assert [p.trial for p in plot_points.predicted(tx, job.id, limit=2)] == [5, 6]
        assert trials.error_counts(tx, job.id) == {"build": 1}
        (task,) = jobs.tasks(tx, job.id)
    assert (task.best_us, task.best_trial, task.n_trials, task.n_failed) == (20.0, 4, 6, 1)


def test_the_curve_of_several_tasks_is_their_weighted_sum(db: database.Database) -> None:
    job, fence = service_fakes.claimed(db, n_tasks=2)
    for number, (task, latency_us) in enumerate([(0, 10.0), (1, 30.0), (1, 20.0), (0, 5.0)]):
        service_fakes.add(db, fence, service_fakes.new_trial(number, latency_us, task=task))
    with db.read() as tx:
        points = plot_points.curves(tx, [job.id])[job.id]
        assert [(p.trial, p.best_us) for p in points] == [(2, 70.0), (3, 50.0), (4, 45.0)]
        of_task = [(p.trial, p.best_us) for p in plot_points.curves(tx, [job.id], 1)[job.id]]
        assert of_task == [(2, 30.0), (3, 20.0), (4, 20.0)]
        both = plot_points.curves(tx, [job.id])
        assert both == {job.id: points}
        with pytest.raises(errors.NotFound):
            plot_points.curves(tx, [job.id, 99])


def test_what_is_measured_again_counts_alone(db: database.Database) -> None:
    job, fence = service_fakes.claimed(db)
    for number, latency_us in enumerate([50.0, 20.0, 21.0]):
        service_fakes.add(db, fence, service_fakes.new_trial(number, latency_us))
    with db.write() as tx:
        trials.remeasure(
            tx, fence, service_fakes.new_trial(1, 25.0, record="again", elapsed_s=9.0)
        )
    after = service_fakes.get(db, job.id)
    assert (after.best_us, after.n_trials) == (21.0, 3)
    with db.write() as tx:
        trials.remeasure(tx, fence, service_fakes.new_trial(2, None, record="failed again"))
    assert service_fakes.get(db, job.id).best_us == 25.0
    with db.read() as tx:
        assert plot_points.curves(tx, [job.id])[job.id][-1].best_us == 25.0
        assert trials.records(tx, job.id)[3:] == ["again", "failed again"]
        assert trials.get(tx, job.id, 2).final_us == 25.0
        (task,) = jobs.tasks(tx, job.id)
        assert (task.best_us, task.best_trial) == (25.0, 2)


def test_a_schedule_is_one_trial(db: database.Database) -> None:
    job, fence = service_fakes.claimed(db)
    first = service_fakes.add(db, fence, service_fakes.new_trial(0, 50.0))
    again = service_fakes.add(db, fence, service_fakes.new_trial(0, 40.0))
    assert (first.is_new, again.is_new, again.number) == (True, False, first.number)
    assert service_fakes.get(db, job.id).best_us == 50.0
    broken = service_fakes.new_trial(1, None, error="infrastructure")
    assert service_fakes.add(db, fence, broken).number == 2
    assert service_fakes.get(db, job.id).n_failed == 1
    mended = service_fakes.add(db, fence, service_fakes.new_trial(1, 30.0))
    assert (mended.number, mended.is_new) == (2, True)
    after = service_fakes.get(db, job.id)
    assert (after.n_trials, after.n_failed, after.best_us) == (2, 0, 30.0)


def test_events_are_numbered_without_gaps(db: database.Database) -> None:
    job, fence = service_fakes.claimed(db)
    service_fakes.add(db, fence, service_fakes.new_trial(0))
    with db.write() as tx:
        progress.warn(tx, fence, "x")
        control.change(tx, job.id, tags=["t"])
    with db.read() as tx:
        log = events.after(tx, job.id)
        assert [e.seq for e in log] == [1, 2, 3, 4, 5]
        assert [e.type for e in log] == ["state", "state", "trial", "warning", "changed"]
        assert (log[1].from_state, log[1].to_state) == ("queued", "running")
        assert [e.seq for e in events.after(tx, job.id, 3)] == [4, 5]
        assert [e.seq for e in events.after(tx, job.id, 1, limit=2)] == [2, 3]
        only = events.after(tx, job.id, kinds=[events.Type.TRIAL])
        assert only[0].payload["latency_us"] == 10.0
        assert events.last(tx, job.id) == 5 and events.last(tx, 99) is None
        assert service_fakes.get(db, job.id).last_seq == 5


def test_a_rolled_back_event_leaves_no_gap(db: database.Database) -> None:
    job = service_fakes.create(db)

    def write(fail: bool) -> None:
        with db.write() as tx:
            events.append(tx, job.id, events.Type.WARNING, {})
            if fail:
                raise RuntimeError("rolled back")

    with pytest.raises(RuntimeError):
        write(True)
    write(False)
    assert [e.seq for e in service_fakes.read(db, events.after, job.id)] == [1, 2]


def test_progress_of_a_run(db: database.Database) -> None:
    job, fence = service_fakes.claimed(db)
    counts = {"n_candidates": 4, "n_invalid": 1, "predicted_us": 3.0, "elapsed_s": 2.0}
    steps = [{"step": 0, "temperature": 0.5, "loss": 3.0, "penalty": 0.1}]
    with db.write() as tx:
        progress.started(tx, fence, ["key"], {"model": "shipped"})
        progress.opened(tx, fence, 0, 2, 0.5)
        progress.baseline(tx, fence, 0, 100.0, "")
        progress.round_started(tx, fence, 0, 0, counts, [])
        progress.round_started(tx, fence, 0, 0, counts, steps)  # after a kill
        progress.round_started(tx, fence, 0, 1, counts, [])
        training = {"n_records": 4, "loss_before": 1.0, "loss_after": None, "accepted": True}
        progress.trained(tx, fence, training)
        progress.save(
            tx, fence, progress.Checkpoint(4, {"x": [1]}, b"\0t"), 7.5, {"search_s": 2.0}
        )
    after = service_fakes.get(db, job.id)
    assert (after.model, after.elapsed_s, after.unscheduled_us) == ("shipped", 7.5, 100.0)
    assert after.breakdown == {"search_s": 2.0}
    with db.read() as tx:
        rounds = progress.rounds(tx, job.id)
        assert [(r.round, r.steps) for r in rounds] == [(0, steps), (1, [])]
        assert [r.round for r in progress.rounds(tx, job.id, task=0, after=0)] == [1]
        assert progress.trainings(tx, job.id)[0].loss_after is None
        assert progress.checkpoint(tx, job.id) == progress.Checkpoint(4, {"x": [1]}, b"\0t")
        (task,) = jobs.tasks(tx, job.id)
    assert (task.task_key, task.n_sketches, task.unscheduled_us) == ("key", 2, 100.0)
    with db.write() as tx:
        progress.save(tx, fence, progress.Checkpoint(8, {"x": [2]}, None), 9.0, {})
    with db.read() as tx:
        assert progress.checkpoint(tx, job.id) == progress.Checkpoint(8, {"x": [2]}, None)


def test_artifacts_replace_each_other_by_name(db: database.Database) -> None:
    job, fence = service_fakes.claimed(db)
    new = service_fakes.artifact(blobs.Stored("0" * 64, 5), "a.zip")
    with db.write() as tx:
        artifacts.add(tx, fence, new)
        artifacts.add(tx, fence, dataclasses.replace(new, sha256="1" * 64))
        artifacts.store_code(
            tx, fence, artifacts.Code(task=0, schedule="schedule", source="source")
        )
    with db.read() as tx:
        assert [a.sha256 for a in artifacts.of_job(tx, job.id)] == ["1" * 64]
        assert artifacts.get(tx, job.id, "a.zip").size_bytes == 5
        assert jobs.code(tx, job.id, 0) == ("schedule", "source", None)
        with pytest.raises(errors.NotFound):
            artifacts.get(tx, job.id, "b.zip")
    other = service_fakes.create(db)
    second = service_fakes.claim(db).fence
    with db.write() as tx:
        artifacts.add(tx, second, dataclasses.replace(new, sha256="1" * 64))
        leases.succeed(tx, fence, "trials")
        leases.succeed(tx, second, "trials")
        assert control.delete(tx, job.id) == []  # the other job has the same content
        assert control.delete(tx, other.id) == ["1" * 64]


def test_the_unscheduled_program_is_the_best_where_it_ships(db: database.Database) -> None:
    job = service_fakes.create(db, n_tasks=2)
    claim = service_fakes.claim(db)
    for task in (0, 1):
        service_fakes.add(db, claim.fence, service_fakes.new_trial(task, 10.0, task=task))
    with db.write() as tx:
        progress.baseline(tx, claim.fence, 0, 6.0, "")
        progress.baseline(tx, claim.fence, 1, 90.0, "")
        progress.chosen(tx, claim.fence, 0, 10.0, 5.0, True)
        progress.chosen(tx, claim.fence, 1, 10.0, 80.0, False)
    after = service_fakes.get(db, job.id)
    assert (after.best_us, after.unscheduled_us) == (5.0 + 2 * 10.0, 5.0 + 2 * 80.0)
    assert after.n_unscheduled == 1
    with db.read() as tx:
        first, second = jobs.tasks(tx, job.id)
        chosen = events.after(tx, job.id, kinds=[events.Type.CHOSEN])
        assert plot_points.curves(tx, [job.id])[job.id][-1].best_us == after.best_us
        assert len(service_fakes.trials_of(tx, job.id)) == 2
    assert (first.ships_unscheduled, first.best_us, first.speedup) == (True, 5.0, 1.0)
    assert (second.ships_unscheduled, second.best_us, second.speedup) == (False, 10.0, 8.0)
    assert [event.payload["curve_us"] for event in chosen] == [25.0, 25.0]


@pytest.mark.parametrize(
    ("unscheduled_us", "speedup"), [(None, None), (50.0, 5.0), (9.8, 1.0), (5.0, 0.5)]
)
def test_a_tie_is_no_slowdown(unscheduled_us: float | None, speedup: float | None) -> None:
    assert fields.TIE == results.TIE
    tuned: Any = fields.Tuned()
    tuned.unscheduled_us, tuned.best_us = unscheduled_us, 10.0
    assert tuned.speedup == speedup
    if unscheduled_us is not None:
        assert results.speedup(unscheduled_us, 10.0) == speedup
