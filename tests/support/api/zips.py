"""Artifacts of jobs, with only what is of interest to tests of the API."""

from __future__ import annotations

import io
import pathlib
import tempfile
import zipfile

from felix import records, workloads
from felix.tuning.opening import task_search


def tuned(m: int = 32, latency_us: float = 3.0) -> bytes:
    """The zip of a job that tuned a gemm: its database, and a manifest that says nothing."""
    task = workloads.gemm(m, 32, 32, target="llvm -num-cores 2")
    sketch = task_search.sketches_of(task)[0]
    schedule = sketch.schedule(tuple(int(v) for v in sketch.sample(1, seed=1)[0]))
    entry = records.DatabaseEntry(
        mod=task.mod, trace=schedule.trace, latencies_us=(latency_us,), target=task.target
    )
    out = io.BytesIO()
    with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(out, "w") as archive:
        records.export_database(folder, [entry])
        for path in pathlib.Path(folder).iterdir():
            archive.write(path, f"felix-job-1/database/{path.name}")
        archive.writestr("felix-job-1/manifest.json", "{}")
    return out.getvalue()
