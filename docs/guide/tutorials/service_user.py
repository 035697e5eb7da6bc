"""Felix's service for a user: start it, submit a job, watch it, download its artifact.

    python docs/guide/tutorials/service_user.py

Needs `pip install ".[server]"`. The service runs on a free port with SQLite, in the folder
`tutorial-service` of the working directory, and ends with this program. A service that runs
elsewhere takes the same requests: only the address and the key differ.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator

import httpx

from felix import client

FOLDER = pathlib.Path("tutorial-service")


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@contextlib.contextmanager
def service(folder: pathlib.Path) -> Iterator[str]:
    """`felix serve`: API, dashboard and one tuner; its address."""
    port = free_port()
    environment = os.environ | {"FELIX_DATA_DIR": str(folder), "FELIX_PORT": str(port)}
    command = [sys.executable, "-m", "felix", "serve", "--upgrade"]
    process = subprocess.Popen(command, env=environment)
    address = f"http://127.0.0.1:{port}"
    try:
        with httpx.Client(base_url=address) as http:
            while not is_ready(http):
                if process.poll() is not None:
                    raise SystemExit(f"felix serve ended with {process.returncode}")
                time.sleep(0.1)
        yield address
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(120)


def is_ready(http: httpx.Client) -> bool:
    """Whether the API answers and has its database."""
    with contextlib.suppress(httpx.TransportError):
        return http.get("/readyz").status_code == 200
    return False


def over_rest(address: str, key: str) -> int:
    """Submit a job and read it back with plain HTTP; its number."""
    headers = {"Authorization": f"Bearer {key}"}
    with httpx.Client(base_url=f"{address}/v1", headers=headers, timeout=60) as api:
        schema = api.get("/operators/softmax").json()
        print("parameters of softmax:", list(schema["properties"]))
        body = {
            "workload": {"kind": "operator", "name": "softmax", "params": {"shape": [16, 64]}},
            "trials": 4,
            "tags": ["tutorial"],
        }
        # The same Idempotency-Key again makes no second job.
        response = api.post("/jobs", json=body, headers={"Idempotency-Key": "tutorial-1"})
        response.raise_for_status()
        again = api.post("/jobs", json=body, headers={"Idempotency-Key": "tutorial-1"})
        job = response.json()
        assert (again.status_code, again.json()["id"]) == (200, job["id"])
        print("job", job["id"], job["state"])

        # Errors are problem details: what is wrong, and where.
        refused = api.post("/jobs", json=body | {"trials": 0})
        print(refused.status_code, refused.json()["title"])
        return int(job["id"])


def with_client(address: str, key: str, job_id: int) -> pathlib.Path:
    """Watch the job to its end and download its artifact."""
    with client.Client(address, key) as felix_service:
        for event in felix_service.events(job_id):  # ends with the job
            print(f"{event.seq:3} {event.type}")
        job = felix_service.job(job_id)
        print(job.state, f"{job.speedup:.1f} times the unscheduled program")
        print("best so far, us:", [point.best_us for point in felix_service.curve(job_id).points])
        return pathlib.Path(felix_service.download(job_id, FOLDER))


with service(FOLDER / "data") as address:
    key = (FOLDER / "data" / "admin-key").read_text().strip()
    print("dashboard:", f"{address}/dashboard")
    archive = with_client(address, key, over_rest(address, key))

# The artifact is a zip with run.py, which needs TVM and numpy, not Felix.
zipfile.ZipFile(archive).extractall(FOLDER)
subprocess.run([sys.executable, FOLDER / archive.stem / "run.py"], check=True)
