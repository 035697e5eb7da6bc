"""The service from Python: submit, watch, download.

In: calls.
Out: requests to a service, rows.
From: users, `cli`, `server`.

    from felix import client

    with client.Client("http://127.0.0.1:8000", key) as felix:
        job = felix.submit("gemm", {"m": 512, "n": 512, "k": 512}, trials=64)
        job = felix.wait(job.id)
        print(job.best_us, job.speedup)
        felix.download(job.id, "out/")

Loads neither TVM nor torch. Errors are `felix.errors.RemoteError`.
"""

from __future__ import annotations

from felix.client._client import Client
from felix.client.rows import (
    Artifact,
    Batch,
    Curve,
    CurvePoint,
    Delivery,
    Device,
    Estimate,
    Event,
    Job,
    Key,
    MadeKey,
    MadeWebhook,
    Project,
    Task,
    Template,
    Trial,
    Webhook,
    Worker,
)

__all__ = [
    "Artifact",
    "Batch",
    "Client",
    "Curve",
    "CurvePoint",
    "Delivery",
    "Device",
    "Estimate",
    "Event",
    "Job",
    "Key",
    "MadeKey",
    "MadeWebhook",
    "Project",
    "Task",
    "Template",
    "Trial",
    "Webhook",
    "Worker",
]
