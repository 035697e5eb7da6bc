"""What earlier jobs measured, for new ones: answered at once, started from, or only hinted at."""

from __future__ import annotations

import io
import json
import pathlib
import zipfile
from collections.abc import Callable
from typing import Any

import pytest

from server import states
from server.database import database, visibility
from server.store import (
    answered_bundle,
    artifacts,
    control,
    events,
    jobs,
    leases,
    progress,
    projects,
    reuse,
    rows,
    trials,
)
from tests.support import service_fakes

VERSIONS = {"felix": "1", "apache-tvm": "2", "apache-tvm-ffi": "3", "python": "4"}
DEVICE = "llvm/test"
STORE = service_fakes.MemoryStore()


def tasks(*programs: str) -> tuple[jobs.NewTask, ...]:
    """Those of names like "f:a" are of the family f."""
    return tuple(
        jobs.NewTask(
            name=p,
            weight=1.0,
            flops=1e6,
            min_bytes=1e3,
            program=p,
            program_key=p,
            family=p.partition(":")[0] if ":" in p else None,
        )
        for p in programs
    )


def record(number: int) -> str:
    return json.dumps({"record": number, "elapsed_s": 5.0})


def measured(
    db: database.Database,
    *programs: str,
    n_trials: int = 8,
    versions: dict[str, str] | None = None,
    end: str = "succeed",
    reason: str = "trials",
    key_id: int | None = None,
    **changes: Any,
) -> rows.Job:
    """An ended job with so many trials of each task."""
    new = service_fakes.new_job(
        tasks=tasks(*programs), **({"trials": n_trials * len(programs)} | changes)
    )
    with db.write() as tx:
        job = jobs.create(tx, new, key_id).job
        control.change(tx, job.id, priority=999)
        claim = leases.claim(
            tx, service_fakes.worker_row(tx), [*service_fakes.TARGET_KEYS, DEVICE], 60.0
        )
        assert claim is not None and claim.job.id == job.id
        leases.begin(tx, claim.fence, DEVICE, '{"kind": "llvm"}')
        about = {"model": "m", "versions": versions or VERSIONS}
        progress.started(tx, claim.fence, [f"key of {p}" for p in programs], about)
        for number in range(n_trials * len(programs)):
            task = number % len(programs)
            latency = None if number == 1 else 100.0 / (number + 1)
            new_trial = service_fakes.new_trial(
                number, latency, task=task, record=record(number), elapsed_s=5.0
            )
            trials.append(tx, claim.fence, new_trial)
        if end == "succeed":
            _bundle(tx, claim, job.id)
            leases.succeed(tx, claim.fence, reason)
        else:
            leases.fail(tx, claim.fence, "broken", "broken", None)
    return service_fakes.get(db, job.id)


def _bundle(tx: Any, claim: leases.Claim, job_id: int) -> None:
    stored = service_fakes.put(STORE, service_fakes.bundle(job_id))
    artifacts.add(tx, claim.fence, service_fakes.artifact(stored, "a.zip"))
    artifacts.store_code(
        tx, claim.fence, artifacts.Code(task=0, schedule="schedule", source="source")
    )


def submit(
    db: database.Database,
    *programs: str,
    versions: dict[str, str] | None = None,
    project: str = "default",
    key_id: int | None = None,
    alive: tuple[str, ...] = (DEVICE,),
    **changes: Any,
) -> rows.Job:
    """A new job, with what is reused."""
    new = service_fakes.new_job(
        tasks=tasks(*programs), **({"trials": 8 * len(programs)} | changes)
    )
    with db.write() as tx:
        job = jobs.create(tx, new, key_id).job
        reuse.apply(
            tx,
            reuse.Request(
                job_id=job.id,
                new=new,
                versions=versions or VERSIONS,
                device_keys=alive,
                project=project,
                store=STORE,
            ),
        )
    return service_fakes.get(db, job.id)


def of(db: database.Database, job_id: int) -> list[rows.Task]:
    return service_fakes.read(db, jobs.tasks, job_id)


def test_a_known_job_is_answered_at_once(db: database.Database) -> None:
    first = measured(db, "a", "b")
    job = submit(db, "a", "b")
    assert (job.state, job.reason, job.reused_from) == (states.State.SUCCEEDED, "reused", first.id)
    assert (job.best_us, job.n_trials, job.target_key) == (first.best_us, 0, DEVICE)
    assert job.finished_at is not None and job.versions == VERSIONS
    with db.read() as tx:
        (bundle,), (original,) = artifacts.of_job(tx, job.id), artifacts.of_job(tx, first.id)
        assert jobs.code(tx, job.id, 0) == ("schedule", "source", None)
        kinds = [event.type for event in events.after(tx, job.id)]
    assert bundle.sha256 != original.sha256 and bundle.name == f"felix-job-{job.id}.zip"
    assert kinds == ["state", "artifact", "reused", "state", "state"]
    assert [t.best_us for t in of(db, job.id)] == [t.best_us for t in of(db, first.id)]
    with db.write() as tx:
        assert control.delete(tx, first.id) == [original.sha256]
        assert control.delete(tx, job.id) == [bundle.sha256]


def _unzipped(sha256: str) -> dict[str, tuple[bytes, int]]:
    """Contents and modes of a bundle's files."""
    with zipfile.ZipFile(io.BytesIO(STORE.contents[sha256])) as archive:
        assert archive.testzip() is None
        return {
            info.filename: (archive.read(info), info.external_attr >> 16)
            for info in archive.infolist()
        }


def test_the_bundle_of_an_answered_job_is_its_own(db: database.Database) -> None:
    first = measured(db, "a")
    job = submit(db, "a", name="the second", trials=4)
    with db.read() as tx:
        (bundle,), (original,) = artifacts.of_job(tx, job.id), artifacts.of_job(tx, first.id)
    before, after = _unzipped(original.sha256), _unzipped(bundle.sha256)
    assert list(after) == [
        name.replace(f"felix-job-{first.id}/", f"felix-job-{job.id}/") for name in before
    ]
    old, new = (f"felix-job-{number}/manifest.json" for number in (first.id, job.id))
    manifests = [json.loads(files.pop(name)[0]) for files, name in ((before, old), (after, new))]
    assert list(before.values()) == list(after.values())  # contents and modes
    about = manifests[1].pop("job")
    assert manifests[0].pop("job")["id"] == first.id and manifests[0] == manifests[1]
    assert about["created"] == job.created_at.isoformat()
    expected = {
        "id": job.id,
        "name": "the second",
        "reused_from": first.id,
        "reason": "reused",
        "trials": 4,
        "operator": "gemm",
        "latency_us": first.best_us,
    }
    assert {name: about[name] for name in expected} == expected


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: b"PK",
        lambda content: content[: len(content) // 2],
        lambda content: content.replace(b"manifest.json", b"manifest.text"),
        lambda content: content.replace(b'"felix_artifact"', b'"felix_artefact"'),
        lambda content: None,
    ],
    ids=["no zip", "cut", "no manifest", "changed", "gone"],
)
def test_a_damaged_bundle_answers_nothing(
    db: database.Database, damage: Callable[[bytes], bytes | None], caplog: Any
) -> None:
    first = measured(db, "a")
    sha256 = service_fakes.read(db, artifacts.of_job, first.id)[0].sha256
    damaged = damage(_stored(STORE.contents.pop(sha256)))
    if damaged is not None:
        STORE.contents[sha256] = damaged
    job = submit(db, "a")
    assert (job.state, job.n_trials) == (states.State.QUEUED, 8)  # it starts from measurements
    assert "is damaged" in caplog.text
    assert service_fakes.read(db, artifacts.of_job, job.id) == []


def test_a_manifest_must_be_an_object(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("felix-job-1/manifest.json", "[]")
    with pytest.raises(ValueError, match="no object"):
        answered_bundle.rewrite(path, tmp_path / "b.zip", "felix-job-2", {})


def _stored(content: bytes) -> bytes:
    """The same zip without compression, so that tests can change its texts."""
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(out, "w") as new:
        for info in old.infolist():
            new.writestr(info.filename, old.read(info))
    return out.getvalue()


@pytest.mark.parametrize(
    "changes",
    [
        {"target": "llvm -num-cores 2"},
        {"strategy": "local"},
        {"seed": 1},
        {"target_key": "cuda", "target": "cuda"},
        {"versions": {**VERSIONS, "apache-tvm": "9"}},
        {"versions": {**VERSIONS, "felix": "9"}},
    ],
)
def test_another_request_is_not_answered(db: database.Database, changes: dict[str, Any]) -> None:
    measured(db, "a")
    job = submit(db, "a", **changes)
    assert (job.state, job.n_trials, job.reused_from) == (states.State.QUEUED, 0, None)


def test_other_python_versions_are_comparable(db: database.Database) -> None:
    measured(db, "a")
    assert submit(db, "a", versions={**VERSIONS, "python": "9"}).reused_from is not None


def test_more_trials_start_from_the_earlier_ones(db: database.Database) -> None:
    first = measured(db, "a")
    job = submit(db, "a", trials=20)
    assert (job.state, job.n_trials, job.n_failed) == (states.State.QUEUED, 8, 1)
    assert (job.best_us, job.elapsed_s) == (first.best_us, 0.0)
    assert (job.target_key, job.resolved_target) == (DEVICE, '{"kind": "llvm"}')
    (task,) = of(db, job.id)
    assert (task.reused_from, task.settled, task.best_trial) == (first.id, False, 8)
    with db.read() as tx:
        lines = [json.loads(line) for line in trials.records(tx, job.id)]
        copies, originals = (service_fakes.trials_of(tx, n) for n in (job.id, first.id))
        curve = [t.number for t in copies if t.is_best]
    assert lines == [{"record": n, "elapsed_s": 0.0} for n in range(8)]
    assert [t.latency_us for t in copies] == [t.latency_us for t in originals]
    assert curve == [t.number for t in originals if t.is_best]
    same = {"job_id", "elapsed_s", "measured_s"}
    assert {k: v for k, v in vars(copies[3]).items() if k not in same} == {
        k: v for k, v in vars(originals[3]).items() if k not in same
    }


def test_trials_of_a_started_job_follow_the_copies(db: database.Database) -> None:
    measured(db, "a")
    job = submit(db, "a", trials=20)
    with db.write() as tx:
        claim = leases.claim(tx, service_fakes.worker_row(tx), [DEVICE], 60.0)
        assert claim is not None and claim.job.id == job.id
        progress.started(tx, claim.fence, ["key of a"], {"versions": VERSIONS})
        again = trials.append(tx, claim.fence, service_fakes.new_trial(3, 25.0, record=record(3)))
        fresh = trials.append(tx, claim.fence, service_fakes.new_trial(8, 1.0, record=record(8)))
    assert (again.is_new, again.number) == (False, 4)
    assert (fresh.is_new, fresh.number) == (True, 9)
    after = service_fakes.get(db, job.id)
    assert (after.n_trials, after.best_us, after.versions) == (9, 1.0, VERSIONS)


def test_a_device_that_is_gone_does_not_hold_a_job(db: database.Database) -> None:
    measured(db, "a")
    job = submit(db, "a", trials=20, alive=())
    assert (job.n_trials, job.target_key, job.resolved_target) == (0, "llvm", None)
    assert of(db, job.id)[0].reused_from is not None  # its schedules are still worth a try


def test_known_tasks_of_a_network_cost_nothing(db: database.Database) -> None:
    """`a` is known from one job, `b` from another with fewer trials, `c` is new."""
    known = measured(db, "a")
    short = measured(db, "b", n_trials=4)
    job = submit(db, "a", "b", "c")
    assert (job.state, job.n_trials, job.best_us) == (states.State.QUEUED, 12, None)
    made = of(db, job.id)
    assert [t.reused_from for t in made] == [known.id, short.id, None]
    assert [t.settled for t in made] == [True, False, False]
    assert [t.n_trials for t in made] == [8, 4, 0]
    with db.read() as tx:
        assert [t.number for t in service_fakes.trials_of(tx, job.id)] == list(range(1, 13))


def test_other_versions_give_schedules_only(db: database.Database) -> None:
    old = measured(db, "a", versions={**VERSIONS, "felix": "0"})
    job = submit(db, "a")
    (task,) = of(db, job.id)
    assert (job.n_trials, job.best_us, task.reused_from) == (0, None, old.id)
    with db.read() as tx:
        lines = [json.loads(line)["record"] for line in reuse.known_schedules(tx, job.id, 0)]
    assert lines == [7, 6, 5, 4, 3, 2, 0]  # the fastest first; one failed


def test_measurements_of_several_versions_are_no_answer(db: database.Database) -> None:
    first = measured(db, "a", end="fail")
    with db.write() as tx:
        control.retry(tx, first.id)
        claim = leases.claim(tx, service_fakes.worker_row(tx), [DEVICE], 60.0)
        assert claim is not None
        progress.started(tx, claim.fence, ["key of a"], {"versions": {**VERSIONS, "felix": "9"}})
        leases.succeed(tx, claim.fence, "trials")
    assert service_fakes.get(db, first.id).versions == {}
    assert submit(db, "a").n_trials == 0


def test_failed_jobs_are_a_start_but_no_answer(db: database.Database) -> None:
    measured(db, "a", end="fail")
    job = submit(db, "a")
    assert (job.state, job.n_trials) == (states.State.QUEUED, 8)
    assert of(db, job.id)[0].settled


def test_jobs_of_another_project_do_not_exist(db: database.Database) -> None:
    service_fakes.write(db, projects.create, "b")
    mine, other = (service_fakes.key(db, project=name).key.id for name in ("default", "b"))
    first = measured(db, "a", key_id=other)
    job = submit(db, "a", key_id=mine)
    assert job.state is states.State.QUEUED and of(db, job.id)[0].reused_from is None
    with db.read(visibility.Visibility("default")) as tx:
        assert reuse.similar(tx, job.id) == []
    assert [each.id for each in service_fakes.read(db, reuse.similar, job.id)] == [first.id]


def test_similar_jobs_share_the_operator_or_a_program(db: database.Database) -> None:
    first = service_fakes.create(db, tasks=tasks("a"), op="gemm")
    other = service_fakes.create(db, tasks=tasks("b"), op="gemm")
    service_fakes.create(db, tasks=tasks("c"), op="softmax")
    same = service_fakes.create(db, tasks=tasks("a"), op="p.json", kind="tir")
    assert [j.id for j in service_fakes.read(db, reuse.similar, first.id)] == [same.id, other.id]
    assert [j.id for j in service_fakes.read(db, reuse.similar, same.id)] == [first.id]


def test_enough_is_what_the_budget_asks() -> None:
    from types import SimpleNamespace

    def enough(job: dict[str, Any], **new: Any) -> bool:
        fields = {"reason": "trials", "n_trials": 64, "elapsed_s": 30.0, "seconds": None}
        fields |= {"options": {}} | job
        new_job = service_fakes.new_job(**({"trials": 64} | new))
        return reuse._is_enough(SimpleNamespace(**fields), new_job)  # type: ignore[arg-type]

    assert enough({}) and not enough({}, trials=65)
    assert enough({}, trials=20_000, seconds=30.0) and not enough({}, trials=20_000, seconds=31.0)
    spent = {"reason": "seconds", "seconds": 40.0}  # the rest made the artifacts
    assert enough(spent, trials=99, seconds=40.0) and not enough(spent, trials=99, seconds=41.0)
    assert enough({"reason": "exhausted"}, trials=10**4)
    assert enough({"reason": "converged", "options": {"p": 3}}, trials=99, options={"p": 3})
    assert not enough({"reason": "converged", "options": {"p": 3}}, trials=99, options={"p": 9})


def test_an_artifact_without_all_tasks_answers_no_larger_job(db: database.Database) -> None:
    """There was no time for the one of the second task."""
    first = measured(db, "a", "b", seconds=20.0, reason="seconds")
    for more in ({"seconds": None}, {"seconds": 30.0}):
        assert submit(db, "a", "b", **more).reused_from is None
    assert submit(db, "a", "b", seconds=20.0).reused_from == first.id


def test_a_new_program_begins_with_those_of_its_family(db: database.Database) -> None:
    """In its project and of its kind of device, the newest first."""
    service_fakes.write(db, projects.create, "b")
    elsewhere = service_fakes.key(db, project="b").key.id
    for program in ("f:a", "f:b", "f:a", "g:c"):
        measured(db, program)
    measured(db, "f:e", key_id=elsewhere)
    job, other = submit(db, "f:d"), submit(db, "f:d", target_key="cuda")
    alone = submit(db, "e")
    with db.read() as tx:
        found = reuse.known_similar(tx, job.id, 0)
        assert [each.program for each in found] == ["f:a", "f:b"]
        assert [json.loads(each.record)["record"] for each in found] == [7, 7]
        assert reuse.known_similar(tx, other.id, 0) == []
        assert reuse.known_similar(tx, alone.id, 0) == []
