"""A process that has everything imported and forks tuners on request, for the kill tests.

    python -m tests.support.service_kill_child URL FOLDER

Each line on stdin forks a tuner and prints its process id. The tuners run the real round
loop, session and store; sketches and measuring are fakes that take milliseconds. What the store
acknowledged is noted in FOLDER/acknowledged, one line a trial, only after it was.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import signal
import sys
from typing import Any

from felix.processes import policy
from server import settings
from server.database import database
from server.store import artifacts, blobs, trials
from server.tuner import claimed_job, engine, felix_engine, places, tuner
from tests.support import service_fakes, tuning_fakes

SETTINGS = settings.Settings(
    lease_s=1.5, beat_s=0.15, poll_s=0.02, reap_s=0.1, max_attempts=10_000
)


class FakePlaces(places.ThisMachine):
    """A fake device whose pools are fresh and need 4 ms a candidate."""

    lost = None

    def __init__(self) -> None:
        self._devices = [
            {"name": "fake", "kind": "llvm", "target_keys": ["llvm", "llvm/x", "llvm/x/fake"]}
        ]
        self.pool: Any = lambda task: tuning_fakes.Pool(seconds=0.004)
        self.conditions = list

    def close(self) -> None:
        """Nothing to end."""


class FakeDeviceEngine(service_fakes.InItsTuner, felix_engine.FelixEngine):
    """The real engine on a fake device."""

    def __init__(self) -> None:
        self._places = FakePlaces()

    def export(
        self, claimed: claimed_job.ClaimedJob, outcome: engine.Outcome, path: pathlib.Path
    ) -> list[artifacts.Code]:
        """A small file instead of a compiled kernel."""
        result, _ = outcome.result
        path.write_text(f"{result.latency_us}")
        return []


def make_engine(_: policy.ConfineGpu = policy.ConfineGpu.AUTO) -> FakeDeviceEngine:
    """The engine, in a process of its own."""
    tuning_fakes.use_cheap()
    return FakeDeviceEngine()


def acknowledge(path: pathlib.Path) -> None:
    """Note every trial after the store has taken it."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    add_trial = claimed_job.ClaimedJob.add_trial

    def noted(self: claimed_job.ClaimedJob, task: int, record: str) -> trials.Written:
        written, new = add_trial(self, task, record), trials.row(task, record)
        line = f"{self.job.id} {written.number} {new.schedule_hash} {new.latency_us}\n"
        os.write(handle, line.encode())
        return written

    claimed_job.ClaimedJob.add_trial = noted  # type: ignore[method-assign]


def tune(url: str, folder: pathlib.Path) -> None:
    """Be a tuner until killed or ended by SIGTERM."""
    tuning_fakes.use_cheap()
    acknowledge(folder / "acknowledged")
    db = database.Database(url)
    working = tuner.Tuner(db, blobs.LocalStore(folder / "blobs"), FakeDeviceEngine(), SETTINGS)
    signal.signal(signal.SIGTERM, lambda *_: working.leaving.set())
    with contextlib.closing(working):
        working.run()


def main() -> None:
    """Fork on every line of stdin."""
    url, folder = sys.argv[1], pathlib.Path(sys.argv[2])
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    print("ready", flush=True)
    for _ in sys.stdin:
        pid = os.fork()
        if pid == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            try:
                tune(url, folder)
            finally:
                os._exit(0)
        print(pid, flush=True)


if __name__ == "__main__":
    main()
