"""A job that grows trial by trial, through the verbs that tuners use, for pages that watch it."""

from __future__ import annotations

import math
import random
from typing import Any

from server.database import database
from server.store import (
    artifacts,
    blobs,
    keys,
    leases,
    progress,
    projects,
    requests,
    rows,
    trials,
    tuners,
    webhooks,
)
from tests.support import api_rows, service_fakes

CONTENT = b"PK the artifact of this job"
NETWORK_CONTENT = b"PK the network of this job"

#: A program long enough to scroll.
SCHEDULE = """# from tvm.script import ir as I
@I.ir_module
class Module:
    @T.prim_func
    def main(A: T.Buffer((512, 512), "float32"), B: T.Buffer((512, 512), "float32")):
        T.func_attr({"global_symbol": "main", "tir.noalias": True})
        for i, j in T.grid(512, 512):
            with T.sblock("gemm"):
                v_i, v_j = T.axis.remap("SS", [i, j])
                B[v_i, v_j] = T.max(A[v_i, v_j], T.float32(0.0))
"""
SOURCE = """; ModuleID = 'TVMMod'
target triple = "x86_64-pc-linux-gnu"

define i32 @main(ptr %args, i32 %n) local_unnamed_addr #0 {
entry:
  %0 = load float, ptr %args, align 4
  %1 = fmul fast float %0, 2.000000e+00
  ret i32 0
}
"""

ASSEMBLY = """\t.text
\t.globl\tmain
main:
\tmovl\t$512, %eax
.LBB0_1:
\tvmovups\t(%rdi,%rcx), %zmm0
\tvfmadd213ps\t64(%rsi), %zmm1, %zmm0
\tdecl\t%eax
\tjne\t.LBB0_1
\tretq
"""


class Growing:
    """A claimed job; `step` measures one more candidate."""

    def __init__(
        self, db: database.Database, worker: int, noise: float = 0.4, seed: int = 0
    ) -> None:
        self.db, self._random, self._noise = db, random.Random(seed), noise
        self.number = 0
        with db.write() as tx:
            tuners.beat(tx, worker)
            claim = leases.claim(tx, worker, service_fakes.TARGET_KEYS, 600.0)
            assert claim is not None
            self.claim = claim
            self.fence = claim.fence
            leases.begin(tx, self.fence, "llvm/test", '{"kind":"llvm"}')
            task_keys = [f"key {number}" for number in range(claim.job.n_tasks)]
            start = {"model": "pretrained for llvm", "trials": claim.job.trials}
            progress.started(tx, self.fence, task_keys, start)
            for task in range(claim.job.n_tasks):
                progress.opened(tx, self.fence, task, 3, 0.5)
                progress.baseline(tx, self.fence, task, 36_000.0, "")

    def step(self, n: int = 1) -> None:
        """Measure `n` more candidates, in rounds of 8; one in nine fails."""
        for _ in range(n):
            number = self.number
            task = number // 8 % self.claim.job.n_tasks
            if number % 8 == 0:
                self._round(task, number // 8)
            latency = 1400 + 9000 * math.exp(-number / 14) * self._random.uniform(0.5, 1.5)
            failed = number % 9 == 5
            error = ("build", "wrong_result", "timeout")[number // 9 % 3] if failed else None
            new = service_fakes.new_trial(
                number,
                None if failed else latency,
                task=task,
                round=number // 8 // self.claim.job.n_tasks,
                error=error,
                message="llvm: register allocation failed" if failed else "",
                predicted_us=latency * math.exp(self._random.gauss(0, self._noise)),
                elapsed_s=2.0 + number * 0.8,
                spread=0.012,
                device="test cpu",
            )
            service_fakes.write(self.db, trials.append, self.fence, new)
            self.number += 1

    def save(self) -> None:
        """Tell where the time went."""
        spent = {
            "start_s": 1.2,
            "extract_s": 3.1,
            "search_s": 22.4,
            "schedule_s": 4.0,
            "build_wait_s": 2.1,
            "measure_s": 17.5,
            "save_s": 0.1,
            "total_s": 52.0,
            "build_work_s": 40.0,
            "run_work_s": 12.0,
        }
        with self.db.write() as tx:
            progress.save(tx, self.fence, progress.Checkpoint(self.number, {}, None), 52.0, spent)

    def finish(self, store: blobs.BlobStore) -> rows.Job:
        """End with an artifact and code."""
        self.save()
        deliver(self.db, store, self.fence, self.claim.job.n_tasks)
        return service_fakes.get(self.db, self.claim.job.id)

    def _round(self, task: int, number: int) -> None:
        round_number = number // self.claim.job.n_tasks
        steps = [
            {
                "step": step,
                "temperature": 1.0 * 0.01 ** (step / 200),
                "loss": 8.5 - 1.2 * (1 - math.exp(-step / 50)) - 0.05 * round_number,
                "mean_loss": 9.4 - 1.6 * (1 - math.exp(-step / 60)),
                "penalty": 0.8 * math.exp(-step / 40),
                "legal_share": step / 200,
            }
            for step in range(0, 201, 10)
        ]
        counts = {
            "n_candidates": 8,
            "n_invalid": 1,
            "predicted_us": 1500.0,
            "elapsed_s": 2.0 + self.number * 0.8,
        }
        with self.db.write() as tx:
            progress.round_started(
                tx, self.fence, task, round_number, counts, steps if round_number else []
            )


def begun(
    db: database.Database, n_trials: int, key_id: int | None = None, **changes: Any
) -> Growing:
    """A new job with so many trials."""
    worker = tuner(db)
    api_rows.queued(db, key_id, **changes)
    made = Growing(db, worker)
    made.step(n_trials)
    return made


def deliver(
    db: database.Database, store: blobs.BlobStore, fence: leases.Fence, n_tasks: int
) -> None:
    """End a job with an artifact, and code for each task."""
    new = service_fakes.artifact(service_fakes.put(store, CONTENT), "felix-job.zip")
    with db.write() as tx:
        artifacts.add(tx, fence, new)
        for task in range(n_tasks):
            code = artifacts.Code(task=task, schedule=SCHEDULE, source=SOURCE, assembly=ASSEMBLY)
            artifacts.store_code(tx, fence, code)
        leases.succeed(tx, fence, "trials")


def add_network(db: database.Database, store: blobs.BlobStore, fence: leases.Fence) -> None:
    """Add the file of a job's network."""
    name = f"felix-job-{fence.job_id}-network.zip"
    new = service_fakes.artifact(service_fakes.put(store, NETWORK_CONTENT), name, "network")
    service_fakes.write(db, artifacts.add, fence, new)


def tuner(db: database.Database, **of_device: str) -> int:
    """A tuner that is alive, with a device whose figures are known."""
    hardware = {
        "name": "test cpu",
        "cores": 2,
        "clock_ghz": 2.4,
        "peak_fp32_gflops": 153.6,
        "dram_bandwidth_gbs": 20.0,
        "vector_lanes": 16,
        "l1_bytes": 32768,
        "l2_bytes": 1048576,
        "l3_bytes": 0,
    }
    device = {**api_rows.DEVICE, "hardware": hardware, "model": "pretrained", **of_device}
    new = tuners.NewWorker(
        name="bench-1",
        host="bench-1.example",
        pid=4711,
        versions={"felix": "0.1.0", "apache-tvm": "0.27.0"},
        devices=[device],
    )
    return service_fakes.write(db, tuners.register, new)


def teams(db: database.Database, key_id: int, job_ids: list[int]) -> None:
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
        limits = {"max_running_jobs": 8, "max_bytes": 50 * 10**9, "retention_days": 90}
        projects.create(tx, "vision", **limits)
        projects.change(tx, "default", max_running_jobs=40, max_bytes=10**6)
        keys.create(tx, keys.NewKey(name="vision ci", project="vision", can_submit=True))
        requests.create_batch(tx, key_id, [*items, {"problem": refused}], None)
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
