"""Jobs, trials and engines for tests of the service, without TVM or processes."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import pathlib
import tempfile
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from typing import Any, Concatenate, ParamSpec, TypeVar

from sqlalchemy import orm

from server import errors
from server.database import database, models
from server.store import (
    artifacts,
    blobs,
    jobs,
    keys,
    leases,
    networks,
    progress,
    rows,
    trials,
    tuners,
)
from server.tuner import claimed_job, engine, heartbeat

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

TARGET_KEYS = ["llvm", "llvm/test"]


class MemoryStore:
    """A `BlobStore` in memory."""

    def __init__(self) -> None:
        self.contents: dict[str, bytes] = {}

    def put(self, path: pathlib.Path) -> blobs.Stored:
        """See `BlobStore.put`."""
        content = path.read_bytes()
        sha256 = hashlib.sha256(content).hexdigest()
        self.contents[sha256] = content
        return blobs.Stored(sha256, len(content))

    def read(self, sha256: str) -> Iterator[bytes]:
        """See `BlobStore.read`."""
        if sha256 not in self.contents:
            raise errors.NotFound("the content is not in the blob store")
        return iter([self.contents[sha256]])

    def has(self, sha256: str) -> bool:
        """See `BlobStore.has`."""
        return sha256 in self.contents

    def delete(self, sha256: str) -> None:
        """See `BlobStore.delete`."""
        self.contents.pop(sha256, None)


def bundle(job_id: int = 1, name: str = "a job") -> bytes:
    """The zip of a job: a folder with a manifest, a library and a text."""
    out = io.BytesIO()
    manifest = {"felix_artifact": 1, "job": {"id": job_id, "name": name}, "files": {"a": "b"}}
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for file, text, mode in (
            ("kernel.so", "library" * 500, 0o755),
            ("a/b.txt", "", 0o644),
            ("manifest.json", json.dumps(manifest), 0o644),
        ):
            info = zipfile.ZipInfo(f"felix-job-{job_id}/{file}")
            info.compress_type = zipfile.ZIP_DEFLATED
            info.external_attr = mode << 16
            archive.writestr(info, text)
    return out.getvalue()


def put(store: blobs.BlobStore, content: bytes) -> blobs.Stored:
    """Store a content."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "content")
        path.write_bytes(content)
        return store.put(path)


def artifact(stored: blobs.Stored, name: str, kind: str = "bundle") -> artifacts.NewArtifact:
    """A file of a job."""
    return artifacts.NewArtifact(
        name=name,
        kind=kind,
        media_type="application/octet-stream" if kind == "input" else "application/zip",
        sha256=stored.sha256,
        size_bytes=stored.size_bytes,
    )


def built_network() -> networks.Built:
    """A network of a group with a task and one without."""
    tuned = networks.Group(
        name="fused_gemm",
        calls=2,
        dtypes=("bfloat16", "float32"),
        task=0,
        felix_us=10.0,
        tvm_us=50.0,
        ships="felix",
        reason="tvm takes 5.00 times as long",
    )
    sort = networks.Group(name="sort", calls=1, untuned="it sorts", ships="tvm", reason="-")
    return networks.Built(call_us=31.0, max_error=1e-6, groups=(tuned, sort))


def network() -> tuple[str, tuple[networks.Group, ...]]:
    """The network of `built_network` before it is built."""
    groups = (
        networks.Group(name="fused_gemm", calls=2, dtypes=("bfloat16", "float32"), task=0),
        networks.Group(name="sort", calls=1, untuned="it sorts"),
    )
    return "net", groups


def new_job(n_tasks: int = 1, **changes: Any) -> jobs.NewJob:
    """A job of `n_tasks` tasks; task i has weight i + 1."""
    tasks = tuple(
        jobs.NewTask(
            name=f"task-{i}", weight=i + 1.0, flops=1e6, min_bytes=1e3, program=f"program {i}"
        )
        for i in range(n_tasks)
    )
    fields: dict[str, Any] = {
        "name": "a job",
        "kind": "operator",
        "op": "gemm",
        "workload": {"params": {"m": 8}},
        "target": "llvm",
        "target_key": "llvm",
        "tasks": tasks,
        "trials": 16,
        "seconds": None,
        "strategy": "gradient",
    }
    return jobs.NewJob(**(fields | changes))


def write(
    db: database.Database,
    verb: Callable[Concatenate[orm.Session, Arguments], Result],
    *arguments: Arguments.args,
    **more: Arguments.kwargs,
) -> Result:
    """Let a verb of the store write, in a transaction of its own."""
    with db.write() as tx:
        return verb(tx, *arguments, **more)


def read(
    db: database.Database,
    verb: Callable[Concatenate[orm.Session, Arguments], Result],
    *arguments: Arguments.args,
    **more: Arguments.kwargs,
) -> Result:
    """What a verb of the store reads."""
    with db.read() as tx:
        return verb(tx, *arguments, **more)


def create(
    db: database.Database, n_tasks: int = 1, key_id: int | None = None, **changes: Any
) -> rows.Job:
    """Queue a job."""
    return write(db, jobs.create, new_job(n_tasks, **changes), key_id).job


def key(db: database.Database, name: str = "k", **fields: Any) -> keys.CreatedKey:
    """A key of the API."""
    return write(db, keys.create, keys.NewKey(name=name, **fields))


def create_for(db: database.Database, task: Any, weight: float = 1.0, **changes: Any) -> rows.Job:
    """Queue a job of a `felix.task.Task`."""
    new = jobs.NewTask(
        name=task.name,
        weight=weight,
        flops=float(task.flops),
        min_bytes=float(task.min_bytes),
        program=task.to_json(),
    )
    return create(db, tasks=(new,), **changes)


def get(db: database.Database, job_id: int) -> rows.Job:
    """A job as it is now."""
    return read(db, jobs.get, job_id)


def line(number: int, latency_us: float | None = 10.0, **changes: Any) -> str:
    """The record of a candidate whose decisions are `number`; without a latency it failed to
    build. `changes` are of its fields and of its measurement's."""
    measured: dict[str, Any] = {
        "latency_us": latency_us,
        "latencies_us": [],
        "error": None if latency_us is not None else "build",
        "message": "",
        "checked": True,
        "spread": 0.1,
        "build_s": 0.5,
        "run_s": 0.25,
        "device": "test",
    }
    measured |= {name: changes.pop(name) for name in measured if name in changes}
    fields: dict[str, Any] = {
        "felix_record": 1,
        "task_key": "k",
        "task_name": "t",
        "sketch_index": 0,
        "sketch_key": "s",
        "decisions": (number, 2),
        "measurement": measured,
        "predicted_us": 12.0,
        "round": number // 4,
        "elapsed_s": number + 1.0,
        "timestamp": 0.0,
        "versions": {},
    }
    return json.dumps(fields | changes)


def new_trial(
    number: int, latency_us: float | None = 10.0, task: int = 0, **changes: Any
) -> models.Trial:
    """The row of a trial that nobody has written yet, of a `line` or a `record` of its own."""
    record = changes.pop("record", None)
    row = trials.row(task, line(number, latency_us, **changes))
    row.record = record or row.record
    return row


def report_device(db: database.Database, *seen: dict[str, Any]) -> None:
    """The only tuner tells how some GPUs are, each as usual but for these fields."""
    usual = {"place": "cuda:0", "host": "rack-1", "driver": "550.1", "queue": 3, "n_measured": 50}
    usual |= {"n_failed": 5, "clock_ghz": 1.7, "power_w": 512.0}
    with db.write() as tx:
        (tuner,) = tuners.every(tx, 60.0)
        key = tuner.devices[0]["target_keys"][-1]
        reports = [tuners.Seen(target_key=key, **(usual | fields)) for fields in seen]
        tuners.write_reports(tx, tuner.id, reports)


def worker(db: database.Database, name: str = "w") -> int:
    """A tuner's row."""
    return write(db, worker_row, name)


def worker_row(tx: orm.Session, name: str = "w", device: Any = None) -> int:
    """A tuner's row, in a transaction."""
    devices = [device or {"name": "cpu"}]
    new = tuners.NewWorker(name=name, host="here", pid=1, versions={"felix": "0"}, devices=devices)
    return tuners.register(tx, new)


def claim(db: database.Database, lease_s: float = 60.0, by: int | None = None) -> leases.Claim:
    """Claim the next job; there must be one."""
    number = worker(db) if by is None else by
    taken = write(db, leases.claim, number, TARGET_KEYS, lease_s)
    assert taken is not None
    return taken


def claimed(db: database.Database, **changes: Any) -> tuple[rows.Job, leases.Fence]:
    """A new job, and the fence of who claims it."""
    job = create(db, **changes)
    return job, claim(db).fence


def claim_next(db: database.Database) -> claimed_job.ClaimedJob:
    """The next job as a tuner has it, also of the device of `service_kill_child`."""
    with db.write() as tx:
        next_claim = leases.claim(tx, worker_row(tx), [*TARGET_KEYS, "llvm/x/fake"], 60.0)
    assert next_claim is not None
    monitor = heartbeat.LeaseMonitor(next_claim.fence, 60.0, ALONE)
    return claimed_job.ClaimedJob(db, next_claim, monitor, threading.Event(), MemoryStore())


def add(db: database.Database, fence: leases.Fence, new: models.Trial) -> trials.Written:
    """Write a trial."""
    return write(db, trials.append, fence, new)


#: Of a job that no other key's has to wait for.
ALONE = heartbeat.Sharing(key_id=None, target_keys=(), slice_s=60.0)


class InItsTuner:
    """What a tuner asks of an engine in its own process, where there is nothing to tell."""

    def reports(self) -> list[tuners.Seen]:
        return []

    def make_ready(self) -> bool:
        return True


def trials_of(tx: orm.Session, job_id: int) -> list[rows.Trial]:
    """All trials of a job, by number."""
    return list(trials.page(tx, job_id, limit=10_000).items)


@dataclasses.dataclass
class Engine(InItsTuner):
    """An engine that measures by a function, with a checkpoint every four trials.

    `latency_of` gives the latency of the trial with that decision; `pause_s` is what one takes.
    """

    latency_of: Callable[[int], float | None] = lambda number: 100.0 / (number + 1)
    pause_s: float = 0.0
    #: how a run ends
    reason: str = "trials"
    failure: str | None = None
    #: why the network cannot be built
    network_error: Exception | None = None
    error: Exception | None = None
    #: before the error
    n_before_error: int = 1
    #: (job, decision) in the order of measuring
    measured: list[tuple[int, int]] = dataclasses.field(default_factory=list)
    resumed: list[int] = dataclasses.field(default_factory=list)
    begun: threading.Event = dataclasses.field(default_factory=threading.Event)
    closed: bool = False
    #: of its only device; None: it has none
    device: dict[str, Any] | None = dataclasses.field(
        default_factory=lambda: {"name": "test cpu", "kind": "llvm", "target_keys": TARGET_KEYS}
    )

    def devices(self) -> list[dict[str, Any]]:
        return [] if self.device is None else [self.device]

    def versions(self) -> dict[str, str]:
        return {"felix": "test"}

    def run(self, at: claimed_job.ClaimedJob) -> engine.Outcome:
        lines, checkpoint = at.load()
        self.resumed.append(len(lines))
        known = {json.loads(line)["decisions"][0] for line in lines}
        assert checkpoint is None or checkpoint.state["n"] <= len(lines)
        at.write(lambda tx: progress.started(tx, at.fence, ["key"], {"model": "none"}))
        for number in range(at.job.trials or 0):
            if number in known:
                continue
            if self.error is not None and len(self.measured) >= self.n_before_error:
                raise self.error
            if at.should_stop():
                return engine.Outcome(reason="interrupted", failure=None, result=None)
            time.sleep(self.pause_s)
            self.measured.append((at.job.id, number))
            at.add_trial(0, line(number, self.latency_of(number)))
            if number % 4 == 3:
                state = {"n": number + 1}
                at.save(progress.Checkpoint(number + 1, state, None), number + 1.0, {})
            self.begun.set()
        return engine.Outcome(reason=self.reason, failure=self.failure, result=None)

    def export(
        self, at: claimed_job.ClaimedJob, outcome: engine.Outcome, path: pathlib.Path
    ) -> list[artifacts.Code]:
        path.write_bytes(f"artifact of job {at.job.id}".encode())
        return [artifacts.Code(task=0, schedule="def main(): ...", source="; llvm")]

    def build_network(
        self, at: claimed_job.ClaimedJob, outcome: engine.Outcome, path: pathlib.Path
    ) -> networks.Built:
        if self.network_error is not None:
            raise self.network_error
        path.write_bytes(b"network")
        return built_network()

    def close(self) -> None:
        self.closed = True
