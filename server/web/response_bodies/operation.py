"""What the service runs on: devices, tuners, cost models, health."""

from __future__ import annotations

from typing import Any

import pydantic

from server.web.response_bodies import common


class DeviceReport(common.ResponseBody):
    """One device as its tuner last saw it."""

    worker_id: int
    place: str = pydantic.Field(description="its name among the devices of its tuner")
    host: str
    driver: str | None
    versions: dict[str, Any]
    fault: str | None = pydantic.Field(description="why it measures nothing; null: it is well")
    queue: int = pydantic.Field(description="candidates that wait for it")
    n_measured: int = pydantic.Field(description="candidates that it measured in the last hour")
    error_rate: float | None = pydantic.Field(
        description="share of them that failed by the device's or its machine's fault"
    )
    clock_ghz: float | None
    power_w: float | None
    seen_at: common.Time


class Device(common.ResponseBody):
    """A device that some tuner measures on."""

    name: str
    kind: str
    target_keys: list[str]
    target: dict[str, Any]
    hardware: dict[str, Any]
    model: str | None = pydantic.Field(description="pretrained, or null for the analytic one")
    n_tuners_alive: int
    worker_ids: list[int]
    reports: list[DeviceReport] = pydantic.Field(description="each one that tuners saw lately")


class Worker(common.ResponseBody):
    """A tuner process, now or before."""

    id: int
    name: str
    host: str
    pid: int
    versions: dict[str, Any]
    devices: list[dict[str, Any]] = pydantic.Field(
        description="`fault`: why nothing can be measured there; `unconfined`: why clients' "
        "programs are not confined there; null otherwise"
    )
    started_at: common.Time
    last_beat_at: common.Time
    stopped_at: common.Time | None
    n_trials: int
    n_infrastructure: int
    n_jobs: int
    job_id: int | None
    is_alive: bool


class Model(common.ResponseBody):
    """A cost model that ships with this version."""

    name: str = pydantic.Field(examples=["llvm"])
    sha256: str
    size_bytes: int
    metadata: dict[str, Any]
    card: str = pydantic.Field(description="Markdown")


class Health(common.ResponseBody):
    """Whether the process works."""

    status: str = pydantic.Field(examples=["ok"])


class Ready(common.ResponseBody):
    """The service can do its work: the database has the right schema, all disks take data."""

    status: str = pydantic.Field(examples=["ready"])
    schema_revision: str
    n_tuners_alive: int
