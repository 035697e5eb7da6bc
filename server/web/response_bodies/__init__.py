"""Bodies of responses, as typed models: the contract of `/v1`.

Units are in the names: latencies in microseconds, durations in seconds. Times are UTC.
"""

from __future__ import annotations

from server.web.response_bodies.access import Audit, Key, Login, MadeKey, Me, Quota
from server.web.response_bodies.common import Listed, Page, ResponseBody, Time
from server.web.response_bodies.jobs import (
    Artifact,
    Batch,
    BatchItem,
    Code,
    Estimate,
    Event,
    Events,
    Group,
    Job,
    Network,
    SimilarJob,
    Task,
    Template,
)
from server.web.response_bodies.operation import Device, DeviceReport, Health, Model, Ready, Worker
from server.web.response_bodies.trials import (
    Curve,
    CurvePoint,
    NamedDecision,
    Predicted,
    PredictedPoint,
    Round,
    Search,
    Training,
    Trial,
)

__all__ = [
    "Artifact",
    "Audit",
    "Batch",
    "BatchItem",
    "Code",
    "Curve",
    "CurvePoint",
    "Device",
    "DeviceReport",
    "Estimate",
    "Event",
    "Events",
    "Group",
    "Health",
    "Job",
    "Key",
    "Listed",
    "Login",
    "MadeKey",
    "Me",
    "Model",
    "NamedDecision",
    "Network",
    "Page",
    "Predicted",
    "PredictedPoint",
    "Quota",
    "Ready",
    "ResponseBody",
    "Round",
    "Search",
    "SimilarJob",
    "Task",
    "Template",
    "Time",
    "Training",
    "Trial",
    "Worker",
]
