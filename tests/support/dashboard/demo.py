"""A service with something on every page: for pictures of the dashboard, and its tests.

One finished network of five tasks, one that has measured its first task only, a job that failed,
jobs in every state, names as long as they may be, and latencies that lie far from the best.
"""

from __future__ import annotations

import math
import random

from sqlalchemy import orm

from server.database import database
from server.store import (
    blobs,
    control,
    jobs,
    keys,
    leases,
    networks,
    progress,
    projects,
    requests,
    rows,
    trials,
    tuners,
    webhooks,
)
from tests.support import api_rows, service_fakes
from tests.support.dashboard import growing

#: What the decisions of a sketch are, as the engine tells it.
DECISIONS = {
    "0": [
        ("tile of h in conv2d_nhwc", 4),
        ("tile of co in conv2d_nhwc", 4),
        ("tile of rc in conv2d_nhwc", 2),
        ("location of pad", 1),
        ("unroll_explicit", 1),
        ("vector", 1),
    ],
}

LAYERS = (
    "conv2d 56x56x64",
    "depthwise_conv2d 56x56x128",
    "conv2d 28x28x128 stride 2",
    "dense 512x1000 bias relu",
    "softmax 1000",
)


def fill(db: database.Database, store: blobs.BlobStore, key_id: int) -> dict[str, int]:
    """Fill an empty database; job numbers by what they show."""
    worker = growing.tuner(db)
    with db.write() as tx:
        team = keys.create(tx, keys.NewKey(name="compilers nightly", can_submit=True)).key
        keys.create(tx, keys.NewKey(name="reader", expires_s=86400.0 * 30))
    network = _network(db, worker, key_id, 160, "mobilenet block, batch 1")
    _finish(db, store, network.fence)
    first = _network(db, worker, team.id, 6, "resnet stage 3")
    made = {"network": network.job.id, "first task": first.job.id}
    for number in range(26):
        _small(db, store, worker, (key_id, team.id)[number % 2], number)
    made["failed"] = _failed(db, key_id).id
    long_name = "a-name-as-long-as-they-may-be-without-any-place-to-break-it-" * 3
    api_rows.queued(db, key_id, name=long_name, tags=("a-long-tag-" * 5, "nightly"), priority=7)
    for number in range(8):
        api_rows.queued(db, team.id, name=f"queued {number}", op="softmax", priority=number % 3)
    made["queued"] = api_rows.queued(db, key_id, name="dense 4096", target_key="cuda/sm_90").id
    return made | teams(db, key_id, [3, 4, 5, made["failed"], made["queued"], 999])


def teams(db: database.Database, key_id: int, job_ids: list[int]) -> dict[str, int]:
    """Projects, notifications in each state, a batch of these jobs and one refused, templates."""
    refused = {
        "title": "Invalid request",
        "status": 422,
        "detail": "the request is not valid",
        "errors": [{"where": "#/trials", "message": "must be greater than 0"}],
    }
    items = [{"job_id": number} for number in job_ids]
    gemm = {"kind": "operator", "name": "gemm", "params": {"m": 512, "n": 512, "k": 512}}
    with db.write() as tx:
        limits = projects.Limits(max_running_jobs=8, max_bytes=50 * 10**9, retention_days=90)
        projects.create(tx, "vision", limits)
        projects.change(tx, "default", projects.Limits(max_running_jobs=40, max_bytes=10**6))
        keys.create(tx, keys.NewKey(name="vision ci", project="vision", can_submit=True))
        batch = requests.create_batch(tx, key_id, [*items, {"problem": refused}], None)
        for name, more in (
            ("nightly", {"trials": 256, "tags": ["nightly"], "reuse": False}),
            ("quick-look", {"seconds": 20.0}),
        ):
            requests.save_template(tx, key_id, name, {"workload": gemm, **more})
        program = {"kind": "tir", "name": "fused_attention.json", "program": "{}"}
        requests.save_template(tx, key_id, "attention", {"workload": program, "target": "cuda"})
        for url in ("https://ci.example/felix", "https://chat.example/" + "a-long-path/" * 9):
            reported = list(webhooks.REPORTED[1:])
            webhook = webhooks.create(tx, "default", url, reported, key_id).webhook
    refusal = webhooks.Reply(None, "the connection was refused")
    replies = ((webhooks.Reply(204, None), None), (webhooks.Reply(503, None), 40), (refusal, None))
    with db.write() as tx:
        for reply, retry_s in replies:
            webhooks.send_test(tx, webhook.id)
            (due,) = webhooks.lease(tx, 1, 60.0)
            webhooks.note(tx, due, reply, retry_s)
        webhooks.send_test(tx, webhook.id)
    return {"batch": batch.id, "webhook": webhook.id}


def _network(
    db: database.Database, worker: int, key_id: int, n_trials: int, name: str
) -> leases.Claim:
    """A network that has measured so many trials, eight of a task before the next."""
    tasks = tuple(
        jobs.NewTask(
            name=layer,
            weight=float(1 + i % 3),
            flops=10.0 ** (8 - i % 3) * 2.3,
            min_bytes=1e6,
            program="",
        )
        for i, layer in enumerate(LAYERS)
    )
    with db.write() as tx:
        new = service_fakes.new_job(
            name=name,
            kind="onnx",
            op="mobilenet_v2.onnx",
            trials=320,
            tasks=tasks,
            workload={
                "file": "mobilenet_v2.onnx",
                "size_bytes": 13_964_571,
                "sha256": "9f" * 32,
                "left_out": ["Shape: has no computation"],
            },
            tags=("nightly", "cpu"),
            priority=99,
            note="Compared with last week's.",
        )
        job = jobs.create(tx, new, key_id).job
        groups = _groups(is_built=False)
        networks.create(tx, job.id, networks.New(name="mobilenet_v2", groups=groups))
        claim = leases.claim(tx, worker, service_fakes.TARGET_KEYS, 6000.0)
        assert claim is not None and claim.job.id == job.id
        leases.begin(tx, claim.fence, "llvm/test", '{"kind":"llvm"}')
        progress.started(
            tx, claim.fence, ["key"] * len(tasks), {"model": "pretrained for llvm", "trials": 320}
        )
    _measure(db, claim.fence, n_trials, len(tasks))
    with db.write() as tx:
        control.change(tx, job.id, priority=0)
    return claim


def _groups(*, is_built: bool) -> tuple[networks.Group, ...]:
    """A group for each layer, and one that cannot be tuned."""
    tuned = [
        networks.Group(
            name=f"fused_{layer.replace(' ', '_')}",
            calls=1 + i % 3,
            task=i,
            dtypes=("bfloat16", "float32") if i % 2 else ("float32",),
            felix_us=2000.0 / (1 + i) if is_built else None,
            tvm_us=60_000.0 / (1 + i) ** 3 if is_built else None,
            ships=("tvm" if i == 4 else "felix") if is_built else None,
            reason=f"the other takes {30 / (1 + i) ** 2:.2f} times as long" if is_built else None,
        )
        for i, layer in enumerate(LAYERS)
    ]
    untuned = networks.Group(
        name="take1",
        calls=1,
        dtypes=("float32", "int64"),
        untuned="an index of it is read",
        ships="tvm" if is_built else None,
        reason="nothing was measured" if is_built else None,
    )
    return (*tuned, untuned)


def _measure(db: database.Database, fence: leases.Fence, n_trials: int, n_tasks: int) -> None:
    draw = random.Random(1)
    for number in range(n_trials):
        task, elapsed_s = number // 8 % n_tasks, 3.0 + 0.9 * number
        with db.write() as tx:
            if number % 8 == 0:
                _round(tx, fence, task, number // 8 // n_tasks, elapsed_s)
            floor_us = 2000.0 / (1 + task) ** 1.5
            latency_us = floor_us * (1 + 6 * math.exp(-number / 25) * draw.uniform(0.1, 2))
            if number % 13 == 3:
                latency_us *= draw.uniform(20, 300)  # far from the best
            failed = number % 17 == 16
            trials.append(tx, fence, service_fakes.new_trial(
                number, None if failed else latency_us, task=task,
                round=number // 8 // n_tasks, sketch_index=0, error="timeout" if failed else None,
                message="ran longer than 10 times the best" if failed else "",
                decisions=(2, 1, 7, 4, 1, 2, 8, 4, 16, 4, 3, (0, 16, 64, 512)[number % 4], number),
                predicted_us=latency_us * math.exp(draw.gauss(0, 0.25)), elapsed_s=elapsed_s,
                spread=0.011, device="Zen 4, 2 cores",
            ))  # fmt: skip


def _round(tx: orm.Session, fence: leases.Fence, task: int, number: int, elapsed_s: float) -> None:
    if number == 0:
        progress.opened(tx, fence, task, 2, 0.7, DECISIONS)
        progress.baseline(tx, fence, task, 60_000.0 / (1 + task), "")
    steps = [
        {
            "step": step,
            "temperature": 0.01 ** (step / 200),
            "penalty": 0.8 * math.exp(-step / 40),
            "loss": 7.5 - 1.2 * (1 - math.exp(-step / 50)) - 0.05 * number,
            "mean_loss": 8.4 - 1.6 * (1 - math.exp(-step / 60)),
            "legal_share": step / 200,
        }
        for step in range(0, 201, 10)
    ]
    counts = {
        "n_candidates": 8,
        "n_invalid": number % 2,
        "predicted_us": 1500.0 / (1 + task),
        "elapsed_s": elapsed_s,
    }
    progress.round_started(tx, fence, task, number, counts, steps if number else [])


def _finish(db: database.Database, store: blobs.BlobStore, fence: leases.Fence) -> None:
    spent = {
        "start_s": 1.2,
        "extract_s": 9.1,
        "search_s": 62.4,
        "schedule_s": 12.0,
        "train_s": 6.0,
        "build_wait_s": 9.1,
        "measure_s": 44.5,
        "save_s": 0.4,
        "total_s": 151.0,
        "build_work_s": 140.0,
    }
    with db.write() as tx:
        training = {"loss_before": 0.51, "loss_after": 0.27, "accepted": True}
        for n_records in (40, 80, 120):
            progress.trained(tx, fence, {**training, "n_records": n_records})
        progress.save(tx, fence, progress.Checkpoint(160, {}, None), 151.0, spent)
        groups = _groups(is_built=True)
        networks.finish(tx, fence, networks.Built(call_us=9500.0, max_error=3e-7, groups=groups))
    growing.add_network(db, store, fence)
    growing.deliver(db, store, fence, len(LAYERS))


def _small(
    db: database.Database, store: blobs.BlobStore, worker: int, key_id: int, number: int
) -> None:
    op = ("gemm", "conv2d", "softmax", "layer_norm")[number % 4]
    size = 64 << number % 5
    api_rows.queued(
        db,
        key_id,
        name=f"{op} {size}x{size}",
        op=op,
        priority=5,
        trials=64,
        tags=("nightly",) if number % 3 else (),
    )
    grows = growing.Growing(db, worker, seed=number)
    grows.step(6 + number % 9)
    job = grows.finish(store)
    with db.write() as tx:
        control.change(tx, job.id, priority=number % 3 - 1)


def _failed(db: database.Database, key_id: int) -> rows.Job:
    claim = api_rows.running(db, key_id, n_trials=0, name="attention 12 heads", op="attention")
    with db.write() as tx:
        for number in range(9):
            trials.append(
                tx,
                claim.fence,
                service_fakes.new_trial(
                    number, None, error="build", message="LLVM ERROR: out of registers"
                ),
            )
        leases.fail(
            tx,
            claim.fence,
            "build",
            "no candidate could be built: LLVM ERROR: out of "
            "registers while allocating v_bc (9 of 9 candidates)",
            None,
        )
        control.change(tx, claim.job.id, priority=0)
        tuners.beat(tx, claim.job.worker_id or 1)
    return service_fakes.get(db, claim.job.id)
