"""A run with its session in the database, how another tuner goes on, what earlier jobs give it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any
from unittest import mock

import pytest

from felix import errors as felix_errors
from felix import events as engine_events
from felix import target, workloads
from felix.builder import payload
from felix.database import records
from felix.metaschedule import trace_text
from felix.runner import protocol
from felix.space import sketch as sketching
from felix.space.sketch import Sketch
from felix.task import Task
from server.database import database
from server.store import events, jobs, leases, plot_points, progress, reuse, rows, trials
from server.tuner import claimed_job, engine, felix_engine, run_records, tuner
from tests.support import service_fakes, service_kill_child, tuning_fakes
from tests.support.templates import naive_gemm

TARGET = "llvm -num-cores 2"


@pytest.fixture(autouse=True)
def fakes(monkeypatch: pytest.MonkeyPatch) -> None:
    tuning_fakes.use_cheap(monkeypatch.setattr)
    monkeypatch.setattr(payload, "fingerprint", lambda mod: None)


def submit(db: database.Database, n_trials: int = 24, strategy: str = "local") -> rows.Job:
    task = workloads.gemm(64, 64, 64, target=TARGET)
    more: dict[str, Any] = {"strategy": strategy, "options": {"round_size": 8}}
    return service_fakes.create_for(db, task, 2.0, target=TARGET, trials=n_trials, **more)


def run(at: claimed_job.ClaimedJob) -> engine.Outcome:
    return service_kill_child.FakeDeviceEngine().run(at)


def stopped_after(at: claimed_job.ClaimedJob, n: int) -> None:
    """Run, and end after n trials as if the process had to."""
    add_trial = at.add_trial

    def counted(task: int, record: str) -> trials.Written:
        written = add_trial(task, record)
        if written.number >= n:
            at._leaving.set()
        return written

    at.add_trial = counted  # type: ignore[method-assign]
    assert run(at).reason == "interrupted"
    at.write(lambda tx: leases.release(tx, at.fence))


def test_a_run_tells_everything(db: database.Database) -> None:
    job = submit(db)
    outcome = run(service_fakes.claim_next(db))
    assert (outcome.reason, outcome.failure) == ("trials", None)
    after = service_fakes.get(db, job.id)
    tuned, budget = outcome.result
    best_us = tuned.results[0].best.latency_us
    assert budget.tuning_s is None and budget.can_write() and budget.can_build()
    assert after.n_trials == 24
    assert after.best_us == pytest.approx(2.0 * best_us)
    assert after.unscheduled_us == 2.0 * tuning_fakes.UNSCHEDULED_US
    assert after.resolved_target is not None and '"kind":"llvm"' in after.resolved_target
    assert after.target_key == "llvm/x/fake"
    assert after.breakdown is not None and after.breakdown["total_s"] > 0
    with db.read() as tx:
        (task,) = jobs.tasks(tx, job.id)
        kinds = {event.type for event in events.after(tx, job.id)}
        assert [r.round for r in progress.rounds(tx, job.id)] == [0, 1, 2]
        curve = plot_points.curves(tx, [job.id])[job.id]
    assert (task.n_sketches, task.n_trials, task.best_us) == (2, 24, best_us)
    assert task.task_key is not None
    assert {"started", "opened", "baseline", "round", "trial", "checkpoint"} <= kinds
    assert curve[-1].best_us == after.best_us


def test_another_tuner_goes_on_as_if_nothing_had_been(db: database.Database) -> None:
    whole = submit(db)
    run(service_fakes.claim_next(db))
    halves = submit(db)
    stopped_after(service_fakes.claim_next(db), 11)
    n_before = service_fakes.get(db, halves.id).n_trials
    assert 11 <= n_before < 24
    run(service_fakes.claim_next(db))
    with db.read() as tx:
        both = [service_fakes.trials_of(tx, job.id) for job in (whole, halves)]
    assert [len(each) for each in both] == [24, 24]
    first, second = ([(t.schedule_hash, t.latency_us) for t in each] for each in both)
    assert second[:8] == first[:8]  # the round that was whole
    assert len(set(second)) == 24


def test_a_checkpoint_of_other_versions_is_left_aside(
    db: database.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = submit(db)
    stopped_after(service_fakes.claim_next(db), 9)
    with db.write() as tx:
        row = tx.get_one(jobs.models.Checkpoint, job.id)
        saved = progress.checkpoint(tx, job.id)
        assert saved is not None
        saved.state["identity"]["versions"]["felix"] = "0.0.0"
        row.state = progress.zlib.compress(progress.json.dumps(saved.state).encode())
    run(service_fakes.claim_next(db))
    with db.read() as tx:
        warned = events.after(tx, job.id, kinds=[events.Type.WARNING])
        rows_ = service_fakes.trials_of(tx, job.id)
    assert "other versions" in warned[0].payload["message"]
    assert len(rows_) == len({t.schedule_hash for t in rows_}) == 24


def test_a_lost_lease_ends_a_run_at_the_next_write(db: database.Database) -> None:
    from server import errors

    job = submit(db)
    at = service_fakes.claim_next(db)
    with db.write() as tx:
        tx.get_one(jobs.models.Job, job.id).lease_token = "another tuner's"
    with pytest.raises(errors.LeaseLost):
        run(at)
    assert service_fakes.get(db, job.id).n_trials == 0


def test_infinite_losses_become_null(db: database.Database) -> None:
    submit(db)
    at = service_fakes.claim_next(db)
    report = run_records.EventRecorder(at, ["key"], {})
    lost = engine_events.Trained(
        n_records=4, loss_before=math.inf, loss_after=math.nan, accepted=False
    )
    report(lost)
    (training,) = service_fakes.read(db, progress.trainings, at.job.id)
    assert (training.loss_before, training.loss_after) == (None, None)
    step = engine_events.DescentStep(
        step=0, temperature=0.5, loss=1.0, mean_loss=math.inf, penalty=0.0, legal_share=1.0
    )
    begun = engine_events.RoundStarted(
        task="t",
        task_index=0,
        round=3,
        n_candidates=1,
        n_invalid=0,
        predicted_us=None,
        elapsed_s=1.0,
        steps=(step,),
    )
    report(begun)
    (stored,) = service_fakes.read(db, progress.rounds, at.job.id)
    assert stored.steps == [dataclasses.asdict(step) | {"mean_loss": None}]


def test_a_job_of_a_strategy_that_left_ends_in_a_sentence(db: database.Database) -> None:
    submit(db, strategy="evolutionary")
    with pytest.raises(felix_errors.TuningError) as failed:
        run(service_fakes.claim_next(db))
    decision = tuner.decide(failed.value, attempts=1, max_attempts=3)
    assert decision.retry_after_s is None
    assert decision.message == "there is no strategy 'evolutionary': use gradient or local"


def test_a_skipped_task_is_a_warning_by_name() -> None:
    claimed = mock.Mock()
    skipped = engine_events.Skipped(task="resize", task_index=1, reason="an index is unknown")
    run_records.EventRecorder(claimed, ["a", "b"], {})(skipped)
    claimed.warn.assert_called_once_with("task 'resize' is skipped: an index is unknown")
    claimed.begin_step.assert_called_once_with("a step of tuning")


def test_a_session_stores_tensors(db: database.Database) -> None:
    torch = pytest.importorskip("torch")
    tensors = {"model/weight": torch.arange(6, dtype=torch.float32).reshape(2, 3)}
    content = run_records._write(tensors)
    assert content is not None
    assert torch.equal(run_records._read(content)["model/weight"], tensors["model/weight"])
    assert run_records._write({}) is None and run_records._read(None) == {}


@dataclasses.dataclass
class _Import:
    signature: str
    decisions: list[str]


@dataclasses.dataclass
class _Row:
    n_trials: int = 0
    settled: bool = False


@dataclasses.dataclass
class _Claimed:
    lines: list[str]
    imports: list[_Import]
    similar: list[reuse.SimilarTask] = dataclasses.field(default_factory=list)

    def tasks(self) -> list[_Row]:
        return [_Row()]

    def known_schedules(self, number: int) -> list[str]:
        return self.lines

    def known_imports(self, number: int) -> list[_Import]:
        return self.imports

    def known_similar(self, number: int) -> list[reuse.SimilarTask]:
        return self.similar


def _record(task: Task, sketch: Sketch, row: Sequence[int]) -> str:
    return records.Trial(
        task_key=task.key,
        task_name=task.name,
        sketch_index=sketch.index,
        sketch_key=sketch.key,
        decisions=tuple(row),
        measurement=protocol.Measurement.timed([1.0], checked=True),
        predicted_us=None,
        round=0,
        elapsed_s=0.0,
        timestamp=0.0,
        versions={},
        variant=str(sketch.variant),
    ).to_json()


def test_kernels_of_templates_and_imported_traces_are_tried_first() -> None:
    task = naive_gemm.task(32, 32, 32)
    trace = sketching.sketches(task)[0]
    template = naive_gemm.sketch(9, task)
    row = trace.sample(1, seed=1)[0].tolist()
    signature, texts = trace_text.read(trace.schedule(row).trace.simplified(True))
    record = _record(task, template, (8, 32, 1, 4))
    claimed: Any = _Claimed([record], [_Import(signature, texts)])
    earlier = felix_engine.EarlierJobs(claimed, [task])
    assert earlier.first_schedules(task, [trace, template]) == [
        (template.key, (8, 32, 1, 4)),
        (trace.key, tuple(row)),
    ]


@pytest.mark.parametrize("spec", ["llvm -num-cores 2", "h200"])
def test_schedules_of_other_extents_are_adapted(spec: str) -> None:
    dtype = "bfloat16" if spec == "h200" else "float32"
    known, task = (workloads.gemm(m, 256, 512, dtype=dtype, target=spec) for m in (128, 256))
    sketch = sketching.sketches(known)[-1]
    row = sketch.sample(1, seed=1)[0].tolist()
    similar = reuse.SimilarTask(
        known.to_json(), target.describe(known.target), _record(known, sketch, row)
    )
    sketches = sketching.sketches(task)
    claimed: Any = _Claimed([], [], [similar])
    found = felix_engine.EarlierJobs(claimed, [task]).first_schedules(task, sketches)
    (chosen,) = {key for key, _ in found}
    (adapted,) = [each for each in sketches if each.key == chosen]
    assert str(adapted.variant) == str(sketch.variant)
    assert all(adapted.program(list(row)) is not None for _, row in found)  # they are legal

    broken = dataclasses.replace(similar, record="{}")
    elsewhere = dataclasses.replace(similar, program=workloads.softmax((8, 8)).to_json())
    claimed = _Claimed([], [], [broken, elsewhere])
    assert felix_engine.EarlierJobs(claimed, [task]).first_schedules(task, sketches) == []
