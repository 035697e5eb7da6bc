"""Answer times of a full store, and what 50 watching clients cost a tuning job.

    python benchmarks/service.py answers [--database URL]
    python benchmarks/service.py polling [--workload gemm:256,256,256] [--trials 48] [--pairs 3]

`answers`: 200 finished jobs with 100,000 trials; one client asks for each page 100 times, one
request at a time, over a socket from an API server in a process of its own. The median is to be
under 50 ms on two cores. The first job is written through the verbs that tuners use, the others
are copies of its rows, because writing 100,000 trials one by one would take minutes.

`polling`: one job is tuned on this machine's CPU, with and without 50 clients that ask for the
job and its new events every two seconds, in turn and `--pairs` times. Compared is the job's own
tuning time a trial, with the same seed and cost model. API, clients, tuner and measured kernels
share the machine, so this is the worst case. It is to be slower by less than 5 %.

Reads `server`, `felix.client`'s API; writes `benchmarks/results/service-MODE.json`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import pathlib
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

import httpx
import psutil
import sqlalchemy as sa

from benchmarks import common
from server import blobs, database, models, schema
from server.store import jobs, keys, rows
from tests.service_api import filling

N_JOBS = 200
N_TRIALS = 500
ASKED = 100
CLIENTS = 50
EVERY_S = 2.0
#: Tables whose rows are copied for each job.
COPIED: tuple[type[models.Base], ...] = (
    models.Task, models.Trial, models.Round, models.Training, models.Event,
)  # fmt: skip


def main() -> int:
    """Run one mode; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("mode", choices=["answers", "polling"])
    parser.add_argument("--database", help="URL of an empty database (default: an SQLite file)")
    parser.add_argument("--workload", default="gemm:256,256,256")
    parser.add_argument("--trials", type=int, default=48)
    parser.add_argument("--pairs", type=int, default=3)
    chosen = parser.parse_args()
    found = common.header(f"service-{chosen.mode}")
    with tempfile.TemporaryDirectory() as folder:
        service = Service(pathlib.Path(folder), chosen.database)
        run = _answers if chosen.mode == "answers" else _polling
        found |= run(service, chosen)
    suffix = "" if chosen.database is None else "-postgresql"
    path = common.RESULTS / f"service-{chosen.mode}{suffix}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(found, indent=1) + "\n")
    print(f"written: {path}")
    return 0


class Service:
    """A store, a key and, in a block, an API server in a process of its own."""

    def __init__(self, folder: pathlib.Path, url: str | None) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        own = {"FELIX_DATA_DIR": str(folder), "FELIX_PORT": str(self.port)}
        self.environment = {**os.environ, **own} | ({"FELIX_DATABASE_URL": url} if url else {})
        self.db = database.Database(url or f"sqlite:///{folder / 'felix.db'}")
        self.blobs = blobs.open_store(str(folder / "blobs"))
        schema.upgrade(self.db)
        with self.db.write() as tx:
            made = keys.create(tx, keys.NewKey(name="benchmark", can_admin=True))
        self.headers = {"Authorization": f"Bearer {made.text}"}

    @contextlib.contextmanager
    def serving(self, with_tuner: bool = False) -> Iterator[psutil.Process]:
        """The API, alone or as it is with a tuner beside it."""
        with self.process("serve", *([] if with_tuner else ["--no-tuner"])) as process:
            until_s = time.monotonic() + 120
            while time.monotonic() < until_s:
                with contextlib.suppress(httpx.TransportError):
                    httpx.get(f"{self.url}/healthz")
                    yield psutil.Process(process.pid)
                    return
                time.sleep(0.2)
            raise SystemExit("the API does not answer")

    @contextlib.contextmanager
    def process(self, *command: str) -> Iterator[subprocess.Popen[bytes]]:
        """A command of Felix beside us."""
        process = subprocess.Popen(
            [sys.executable, "-m", "felix", *command], env=self.environment,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            yield process
        finally:
            process.terminate()
            process.wait(60)


def _answers(service: Service, chosen: argparse.Namespace) -> dict[str, Any]:
    began_s = time.perf_counter()
    _fill(service)
    print(f"{N_JOBS} jobs, {N_JOBS * N_TRIALS} trials in {time.perf_counter() - began_s:.0f} s")
    middle, last = N_JOBS // 2, N_JOBS
    overlay = "&".join(f"job={number}" for number in range(1, 9))
    paths = {
        "list, 50 jobs": "/v1/jobs",
        "list, filtered": "/v1/jobs?state=succeeded&tag=even&q=copy",
        "list, all 200 jobs": "/v1/jobs?limit=200",
        "job": f"/v1/jobs/{middle}",
        "curve": f"/v1/jobs/{middle}/curve",
        "curves of 8 jobs": f"/v1/curves?{overlay}",
        "tasks": f"/v1/jobs/{middle}/tasks",
        "100 trials": f"/v1/jobs/{middle}/trials?after=300",
        "predicted, 500 trials": f"/v1/jobs/{middle}/predicted",
        "search": f"/v1/jobs/{middle}/search",
        "new events": f"/v1/jobs/{last}/events?after_seq=400",
        "500 trials as CSV": f"/v1/jobs/{middle}/trials.csv",
    }
    answers = {}
    client = httpx.Client(base_url=service.url, headers=service.headers, timeout=60)
    with service.serving() as server, client:
        for name, path in paths.items():
            found = answers[name] = _ask(client, path, server)
            print(
                f"{name:24} median {found['median_ms']:6.1f} ms   95 % {found['p95_ms']:6.1f} ms"
                f"   server CPU {found['server_cpu_ms']:5.1f} ms   {found['bytes'] >> 10:4} KiB"
            )
    dialect = service.db.engine.dialect.name
    return {"database": dialect, "jobs": N_JOBS, "trials": N_JOBS * N_TRIALS, "answers": answers}


def _ask(client: httpx.Client, path: str, server: psutil.Process) -> dict[str, Any]:
    """`server_cpu_ms` is of the API's process and does not depend on what else runs."""
    times_ms: list[float] = []
    size, used_s = 0, 0.0
    for turn in range(ASKED + 5):
        began_s = time.perf_counter()
        answer = client.get(path)
        took_ms = 1e3 * (time.perf_counter() - began_s)
        if turn == 4:  # the first ones open connections
            used_s = _cpu_s(server)
        if turn > 4:
            times_ms.append(took_ms)
        answer.raise_for_status()
        size = len(answer.content)
    ordered = sorted(times_ms)
    return {
        "median_ms": statistics.median(ordered),
        "p95_ms": ordered[int(0.95 * len(ordered))],
        "server_cpu_ms": 1e3 * (_cpu_s(server) - used_s) / len(ordered),
        "bytes": size,
    }


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def _fill(service: Service) -> None:
    first = filling.finished(service.db, service.blobs, n_trials=N_TRIALS)
    with service.db.write() as tx:
        for number in range(2, N_JOBS + 1):
            copy = _copy_job(tx, first, number)
            for table in COPIED:
                _copy_rows(tx, table, first.id, copy)
            if number % 2 == 0:
                tx.execute(sa.insert(models.JobTag).values(job_id=copy, tag="even"))
    with service.db.engine.execution_options(isolation_level="AUTOCOMMIT").connect() as connection:
        connection.exec_driver_sql("ANALYZE")


def _copy_job(tx: Any, first: rows.Job, number: int) -> int:
    table = models.Job.__table__
    names = [column.name for column in table.columns if column.name not in ("id", "name")]
    source = sa.select(sa.literal(f"copy {number}"), *(table.c[name] for name in names))
    statement = sa.insert(table).from_select(
        ["name", *names], source.where(table.c.id == first.id)
    )
    tx.execute(statement)
    return int(tx.scalar(sa.select(sa.func.max(table.c.id))))


def _copy_rows(tx: Any, model: type[models.Base], source: int, to: int) -> None:
    table = model.__table__
    names = [column.name for column in table.columns if column.name != "job_id"]
    found = sa.select(sa.literal(to), *(table.c[name] for name in names))
    found = found.where(table.c.job_id == source)
    tx.execute(sa.insert(table).from_select(["job_id", *names], found))


def _polling(service: Service, chosen: argparse.Namespace) -> dict[str, Any]:
    runs: dict[str, list[float]] = {"alone": [], "watched": []}
    asked = []
    with service.serving(with_tuner=True):
        _tune(service, chosen, None)  # fills the caches
        for _ in range(chosen.pairs):
            runs["alone"].append(_tune(service, chosen, None))
            runs["watched"].append(_tune(service, chosen, asked.append))
            print({name: [round(value, 2) for value in times] for name, times in runs.items()})
    alone, watched = (statistics.median(runs[name]) for name in ("alone", "watched"))
    slower = watched / alone - 1.0
    print(f"alone {alone:.2f} s a trial, watched {watched:.2f} s: slower by {100 * slower:.1f} %")
    told = {"workload": chosen.workload, "trials": chosen.trials, "clients": CLIENTS}
    return told | {"every_s": EVERY_S, "requests": asked, "s_per_trial": runs, "slower": slower}


def _tune(
    service: Service, chosen: argparse.Namespace, asked: Callable[[int], None] | None
) -> float:
    """Seconds a trial of one job; `asked` learns how many requests its watchers made."""
    from felix.workloads import catalogue

    name, params = catalogue.parse_params(chosen.workload)
    body = {"workload": {"kind": "operator", "name": name, "params": params},
            "trials": chosen.trials}  # fmt: skip
    made = httpx.post(f"{service.url}/v1/jobs", json=body, headers=service.headers, timeout=120)
    made.raise_for_status()
    job_id = int(made.json()["id"])
    watchers = None
    if asked is not None:
        watchers = subprocess.Popen(
            [sys.executable, "-c", f"from benchmarks import service; service.watch({job_id})"],
            env={**service.environment, "WATCHED": json.dumps([service.url, service.headers])},
            cwd=common.ROOT, stdout=subprocess.PIPE,
        )  # fmt: skip
    while True:
        with service.db.read() as tx:
            job = jobs.get(tx, job_id)
        if job.finished_at is not None:
            break
        time.sleep(0.5)
    if watchers is not None and asked is not None:
        asked(int(watchers.communicate(timeout=60)[0]))
    if job.state != "succeeded":
        raise SystemExit(f"job {job_id} {job.state}: {job.message}")
    return job.elapsed_s / job.n_trials


def watch(job_id: int) -> None:
    """In a process of its own: 50 clients until the job has ended; prints the requests made."""
    url, headers = json.loads(os.environ["WATCHED"])
    print(sum(asyncio.run(_watch_all(url, headers, job_id))))


async def _watch_all(url: str, headers: dict[str, str], job_id: int) -> Sequence[int]:
    limits = httpx.Limits(max_connections=CLIENTS, max_keepalive_connections=CLIENTS)
    async with httpx.AsyncClient(
        base_url=url, headers=headers, limits=limits, timeout=60
    ) as client:
        watching = [_watch(client, job_id, turn * EVERY_S / CLIENTS) for turn in range(CLIENTS)]
        return await asyncio.gather(*watching)


async def _watch(client: httpx.AsyncClient, job_id: int, offset_s: float) -> int:
    asked, seq = 0, 0
    await asyncio.sleep(offset_s)
    while True:
        job = (await client.get(f"/v1/jobs/{job_id}")).raise_for_status().json()
        events = await client.get(f"/v1/jobs/{job_id}/events", params={"after_seq": seq})
        seq = events.raise_for_status().json()["last_seq"]
        asked += 2
        if job["finished_at"] is not None:
            return asked
        await asyncio.sleep(EVERY_S)


if __name__ == "__main__":
    raise SystemExit(main())
