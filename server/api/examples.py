"""An example response of each route: one job and what belongs to it.

Made of the response models, so an example cannot disagree with its model.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any

import pydantic

from server import states
from server.web import response_bodies

_AT = datetime.datetime(2026, 11, 21, 22, 53, 28, tzinfo=datetime.UTC)
_ENDED = _AT + datetime.timedelta(seconds=18)
_SHA256 = "37a3d4a69dfef233" * 4
_DEVICE = "llvm/emeraldrapids/emeraldrapids-2"
_VERSIONS = {"felix": "0.1.0", "apache-tvm": "0.27.0.post1"}

JOB = response_bodies.Job(
    id=7, project="default", name="gemm 512", note="", tags=["nightly"],
    state=states.State.SUCCEEDED, priority=0,
    kind="operator", op="gemm", workload={"params": {"m": 512, "n": 512, "k": 512}},
    target="llvm", target_key=_DEVICE,
    resolved_target='{"kind": "llvm", "num-cores": 2}', trials=48, seconds=None, seed=0,
    strategy="gradient", options={}, key_id=1, created_at=_AT, updated_at=_ENDED, started_at=_AT,
    finished_at=_ENDED, n_tasks=1, n_trials=48, n_failed=1, flops=268435456.0, best_us=1268.1,
    unscheduled_us=149013.2, speedup=117.5, gflops=211.7, progress=1.0, elapsed_s=17.7,
    measured_s=5.5, breakdown={"search_s": 2.5, "build_wait_s": 5.6, "measure_s": 5.9},
    model="cost model llvm (shipped)", reason="trials", error=None, message=None, attempts=1,
    not_before=None, worker_id=None, last_seq=78,
)  # fmt: skip
QUEUED = JOB.model_copy(
    update={
        "state": states.State.QUEUED, "target_key": "llvm", "resolved_target": None,
        "started_at": None, "finished_at": None, "n_trials": 0, "n_failed": 0, "best_us": None,
        "unscheduled_us": None, "speedup": None, "gflops": None, "progress": 0.0,
        "elapsed_s": 0.0, "measured_s": 0.0, "breakdown": None, "model": None, "reason": None,
        "attempts": 0, "last_seq": 1,
    }
)  # fmt: skip
_TASK = response_bodies.Task(
    number=0, name="gemm_512x512x512", weight=1.0, flops=268435456.0, min_bytes=3145728.0,
    n_sketches=3, n_trials=48, n_failed=1, n_rounds=3, best_us=1268.1, best_trial=45,
    unscheduled_us=149013.2, unscheduled_message=None, gflops=211.7, speedup=117.5,
    task_key=_SHA256, program_key=_SHA256, reused_from=None, settled=False,
    ships_unscheduled=False,
)  # fmt: skip
_TRIAL = response_bodies.Trial(
    number=45, task=0, round=2, sketch_index=2, decisions=[2, 32, 4, 2, 16, 1, 1, 32, 64, 8, 512],
    latency_us=1268.1, error=None, message="", spread=0.012, predicted_us=1190.4, best_us=1268.1,
    is_best=True, elapsed_s=15.6, measured_s=4.1, build_s=0.4, run_s=0.1, device=_DEVICE,
    measured_at=_ENDED,
    named_decisions=[
        response_bodies.NamedDecision(name=name, values=values, text=text)
        for name, values, text in (
            ("tile of i in gemm", [2, 32, 4, 2], "2 × 32 × 4 × 2"),
            ("tile of j in gemm", [16, 1, 1, 32], "16 × 1 × 1 × 32"),
            ("tile of k in gemm", [64, 8], "64 × 8"), ("unroll_explicit", [512], "512"),
        )
    ],
)  # fmt: skip
_CURVE = response_bodies.Curve(
    job_id=7,
    name="gemm 512",
    state=states.State.SUCCEEDED,
    unscheduled_us=149013.2,
    points=[
        response_bodies.CurvePoint(
            trial=1, elapsed_s=5.5, measured_s=0.2, best_us=1951.0, share_of_best=0.65
        ),
        response_bodies.CurvePoint(
            trial=45, elapsed_s=15.6, measured_s=4.1, best_us=1268.1, share_of_best=1.0
        ),
    ],
)
_PREDICTED = response_bodies.Predicted(
    n=47,
    rank_correlation=0.85,
    median_ratio=1.2,
    points=[
        response_bodies.PredictedPoint(
            trial=45, task=0, round=2, predicted_us=1190.4, latency_us=1268.1
        )
    ],
)
_SEARCH = response_bodies.Search(
    rounds=[
        response_bodies.Round(
            task=0,
            round=1,
            n_candidates=16,
            n_invalid=0,
            predicted_us=1310.0,
            elapsed_s=6.1,
            steps=[{"step": 0, "temperature": 1.0, "loss": 7.9, "penalty": 0.2}],
        )
    ],
    trainings=[
        response_bodies.Training(
            n_records=16, loss_before=0.31, loss_after=0.12, accepted=True, at=_AT
        )
    ],
    errors={"build": 1},
)
_EVENT = response_bodies.Event(
    seq=12,
    at=_AT,
    type="trial",
    from_state=None,
    to_state=None,
    payload={"trial": 1, "task": 0, "latency_us": 1951.0, "error": None, "best_us": 1951.0},
)
_ARTIFACT = response_bodies.Artifact(
    name="felix-job-7.zip",
    kind="bundle",
    media_type="application/zip",
    sha256=_SHA256,
    size_bytes=52155,
    created_at=_ENDED,
)
_DEVICE_OF = response_bodies.Device(
    name="emeraldrapids", kind="llvm", target_keys=["llvm", _DEVICE],
    target={"kind": "llvm", "num-cores": 2}, hardware={"cores": 2, "clock_ghz": 2.1},
    model="llvm", n_tuners_alive=1, worker_ids=[3],
    reports=[
        response_bodies.DeviceReport(
            worker_id=3, place="cpu:0", host="bench-1", driver=None, versions=_VERSIONS,
            fault=None, queue=0, n_measured=48, error_rate=0.0, clock_ghz=2.1, power_w=None,
            seen_at=_ENDED,
        )
    ],
)  # fmt: skip
_WORKER = response_bodies.Worker(
    id=3,
    name="bench-1",
    host="bench-1",
    pid=4711,
    versions=_VERSIONS,
    devices=[{"name": "emeraldrapids", "kind": "llvm"}],
    started_at=_AT,
    last_beat_at=_ENDED,
    stopped_at=None,
    n_trials=48,
    n_infrastructure=0,
    n_jobs=1,
    job_id=7,
    is_alive=True,
)
_MODEL = response_bodies.Model(
    name="llvm", sha256=_SHA256, size_bytes=914212, metadata={"features": 2}, card="# llvm\n"
)
_KEY = response_bodies.Key(
    id=2,
    project="default",
    name="ci",
    public="0a1b2c3d4e5f",
    can_read=True,
    can_submit=True,
    can_admin=False,
    can_priority=False,
    can_worker=False,
    device_kinds=[],
    max_running_jobs=4,
    max_trials=None,
    max_upload_bytes=None,
    created_at=_AT,
    last_used_at=_ENDED,
    expires_at=None,
    revoked_at=None,
)
_QUOTA = response_bodies.Quota(max_running_jobs=4, max_trials=20000, max_upload_bytes=268435456)
_AUDIT = response_bodies.Audit(
    id=31,
    at=_AT,
    project="default",
    key_id=2,
    key_name="ci",
    action="job.pause",
    subject="job 7",
    detail={"before": "running", "after": "pausing"},
    remote="192.0.2.7",
)
_PROJECT = response_bodies.Project(
    name="vision",
    created_at=_AT,
    max_running_jobs=8,
    max_trials=None,
    max_bytes=10**10,
    retention_days=90,
)
_PROJECT_USAGE = response_bodies.ProjectUsage(
    **_PROJECT.model_dump(), n_running_jobs=2, n_bytes=734003200
)
_WEBHOOK = response_bodies.Webhook(
    id=3,
    project="vision",
    url="https://ci.example/felix",
    states=["succeeded", "failed"],
    created_at=_AT,
    key_id=2,
)
_DELIVERY = response_bodies.Delivery(
    id=12,
    webhook_id=3,
    event_id="job-7-78",
    state="delivered",
    attempts=1,
    created_at=_ENDED,
    body='{"id":"job-7-78","type":"job.succeeded","at":"...","job":{"id":7,"...":"..."}}',
    not_before=_ENDED,
    delivered_at=_ENDED,
    last_status=200,
    last_error=None,
)
_ESTIMATE = response_bodies.Estimate(
    position=3,
    n_tuners=1,
    trials_per_s=2.7,
    n_recent_jobs=20,
    duration_s=17.8,
    begins_in_s=41.0,
    waits_for=None,
)
_SIMILAR = response_bodies.SimilarJob.model_validate(JOB.model_dump())
_BATCH = response_bodies.Batch(
    id=3,
    created_at=_AT,
    items=[
        response_bodies.BatchItem(job_id=7, state=states.State.QUEUED, problem=None),
        response_bodies.BatchItem(
            job_id=None,
            state=None,
            problem={
                "type": "urn:felix:problem:invalid-request",
                "title": "Invalid request",
                "status": 422,
                "detail": "#/trials: Input should be greater than 0",
            },
        ),
    ],
)
_TEMPLATE = response_bodies.Template(
    name="nightly",
    created_at=_AT,
    job={
        "workload": {"kind": "operator", "name": "gemm", "params": {"m": 512, "n": 512, "k": 512}},
        "trials": 64,
    },
)
_GEMM = {
    "type": "object",
    "required": ["m", "n", "k"],
    "properties": {name: {"type": "integer", "minimum": 1} for name in ("m", "n", "k")},
}
_STREAM = f"event: trial\ndata: {_EVENT.model_dump_json()}\nid: 12\n\n"
_SHARED_STREAM = f'data: {{"job_id":7,"event":{_EVENT.model_dump_json()}}}\n\n'


def _moved(state: states.State) -> response_bodies.Job:
    return JOB.model_copy(update={"state": state, "finished_at": None, "reason": None})


def _list(item: response_bodies.ResponseBody) -> response_bodies.Listed[Any]:
    return response_bodies.Listed[Any](items=[item])


def _page(item: response_bodies.ResponseBody) -> response_bodies.Page[Any]:
    return response_bodies.Page[Any](items=[item], next=None)


#: By method and path; the other routes respond with a job.
_RESPONSES: Mapping[tuple[str, str], object] = {
    ("post", "/v1/jobs"): QUEUED,
    ("post", "/v1/jobs/upload"): QUEUED,
    ("get", "/v1/jobs"): _page(JOB),
    ("get", "/v1/jobs/{job_id}/similar"): _list(_SIMILAR),
    ("post", "/v1/batches"): _BATCH,
    ("get", "/v1/batches"): _page(_BATCH),
    ("get", "/v1/batches/{batch_id}"): _BATCH,
    ("get", "/v1/templates"): _list(_TEMPLATE),
    ("put", "/v1/templates/{name}"): _TEMPLATE,
    ("post", "/v1/templates/{name}/jobs"): QUEUED,
    ("post", "/v1/estimate"): _ESTIMATE,
    ("get", "/v1/database"): "the bytes of the zip",
    ("post", "/v1/jobs/{job_id}/pause"): _moved(states.State.PAUSED),
    ("post", "/v1/jobs/{job_id}/resume"): QUEUED,
    ("post", "/v1/jobs/{job_id}/cancel"): _moved(states.State.CANCELLED),
    ("post", "/v1/jobs/{job_id}/stop"): _moved(states.State.STOPPING),
    ("post", "/v1/jobs/{job_id}/retry"): QUEUED,
    ("get", "/v1/jobs/{job_id}/tasks"): _list(_TASK),
    ("get", "/v1/jobs/{job_id}/tasks/{number}/code"): response_bodies.Code(
        schedule="@T.prim_func\ndef main(...): ...",
        source="; ModuleID = 'TVMMod'",
        assembly="vfmadd213ps (%rsi), %zmm1, %zmm0",
    ),
    ("get", "/v1/jobs/{job_id}/trials"): _page(_TRIAL),
    ("get", "/v1/jobs/{job_id}/trials/{number}"): _TRIAL,
    ("get", "/v1/jobs/{job_id}/trials.csv"): "number,task,round,...\r\n1,0,0,...\r\n",
    ("get", "/v1/jobs/{job_id}/trials.jsonl"): f"{_TRIAL.model_dump_json()}\n",
    ("get", "/v1/jobs/{job_id}/curve"): _CURVE,
    ("get", "/v1/jobs/{job_id}/network/curve"): _CURVE,
    ("get", "/v1/curves"): _list(_CURVE),
    ("get", "/v1/jobs/{job_id}/predicted"): _PREDICTED,
    ("get", "/v1/jobs/{job_id}/search"): _SEARCH,
    ("get", "/v1/jobs/{job_id}/events"): response_bodies.Events(items=[_EVENT], last_seq=12),
    ("get", "/v1/jobs/{job_id}/events/stream"): _STREAM,
    ("get", "/v1/events/stream"): _SHARED_STREAM,
    ("get", "/v1/jobs/{job_id}/artifacts"): _list(_ARTIFACT),
    ("get", "/v1/jobs/{job_id}/artifacts/{name}"): "the bytes of the file",
    ("get", "/v1/operators"): {"gemm": _GEMM},
    ("get", "/v1/operators/{name}"): _GEMM,
    ("get", "/v1/workers"): _list(_WORKER),
    ("get", "/v1/devices"): _list(_DEVICE_OF),
    ("get", "/v1/models"): _list(_MODEL),
    ("get", "/v1/jobs.csv"): "id,project,name,state,...\r\n7,default,gemm 512,...\r\n",
    ("get", "/v1/jobs/{job_id}/log"): "2026-11-21T22:53:28Z 1 state to=queued\n",
    ("get", "/v1/projects"): _list(_PROJECT),
    ("post", "/v1/projects"): _PROJECT,
    ("get", "/v1/projects/{name}"): _PROJECT_USAGE,
    ("put", "/v1/projects/{name}"): _PROJECT,
    ("get", "/v1/webhooks"): _list(_WEBHOOK),
    ("post", "/v1/webhooks"): response_bodies.MadeWebhook(webhook=_WEBHOOK, secret="whsec_..."),
    ("post", "/v1/webhooks/{webhook_id}/test"): _DELIVERY,
    ("get", "/v1/webhooks/{webhook_id}/deliveries"): _page(_DELIVERY),
    ("post", "/v1/webhooks/{webhook_id}/deliveries/{delivery_id}/retry"): _DELIVERY,
    ("get", "/v1/me"): response_bodies.Me(key=_KEY, quota=_QUOTA, csrf_token=None),
    ("get", "/v1/keys"): _list(_KEY),
    ("post", "/v1/keys"): response_bodies.MadeKey(key=_KEY, text="felix_0a1b2c3d4e5f_..."),
    ("get", "/v1/keys/{key_id}"): _KEY,
    ("delete", "/v1/keys/{key_id}"): _KEY.model_copy(update={"revoked_at": _ENDED}),
    ("get", "/v1/audit"): _page(_AUDIT),
    ("post", "/v1/session"): response_bodies.Login(csrf_token="...", expires_at=_ENDED),
    ("get", "/healthz"): response_bodies.Health(status="ok"),
    ("get", "/readyz"): response_bodies.Ready(
        status="ready", schema_revision="r0001", n_tuners_alive=1
    ),
    ("get", "/metrics"): 'felix_jobs{state="running"} 1.0\n',
}


def response(method: str, path: str) -> Any:
    """The response of a route that succeeds, as JSON or text."""
    content = _RESPONSES.get((method, path), JOB)
    return content.model_dump(mode="json") if isinstance(content, pydantic.BaseModel) else content
