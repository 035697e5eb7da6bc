"""The verbs of the store, one noun a module; each takes the transaction it works in.

    with database.write() as tx:
        job = store.control.pause(tx, job_id)

Rows come back frozen (`rows`) and stay as they were. A verb raises the errors of `server.errors`.
"""

from __future__ import annotations

from server.store import artifacts, control, events, jobs, keys, leases, progress, trials, workers

__all__ = [
    "artifacts",
    "control",
    "events",
    "jobs",
    "keys",
    "leases",
    "progress",
    "trials",
    "workers",
]
