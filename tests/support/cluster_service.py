"""A service on a real Ray cluster of this machine: API server, nodes, a tuner; each a process.

Nodes may lie in a network of their own, whose link can be cut: on Linux, for root.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import psutil

from felix import client
from server import commands, settings
from server.database import database
from tests.support.cluster_machines import Machines, free_port

#: A node that has not answered for about 8 s is given up, not after a minute as usually.
HEALTH = {
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "2000",
    "RAY_health_check_failure_threshold": "3",
}


class Service:
    """A cluster of one node, an API server and a tuner that measures on the cluster."""

    def __init__(self, folder: pathlib.Path, host: str) -> None:
        self.machines = Machines(folder, host)
        self.machines.environment |= HEALTH | {
            "FELIX_DATA_DIR": str(folder / "data"),
            "FELIX_PORT": str(free_port()),
            "FELIX_CLUSTER": self.machines.address,
        }
        chosen = settings.Settings.from_environment(self.machines.environment)
        commands.upgrade(chosen)
        self.db = database.Database(chosen.database)
        key = commands.first_key(chosen)
        assert key is not None
        self.machines.head()
        self.api = self.felix("serve", "--no-tuner")
        self.client = client.Client(chosen.address, key)

    def begin(self) -> None:
        """Start a node, which stays, and then the tuner."""
        self.stays = self.add_worker()
        self.tuner = self.felix("tuner")
        self.machines.until(self.tuner, lambda text: "is ready for" in text, 120)

    def add_worker(self, *through: str) -> subprocess.Popen[bytes]:
        """Start a node, by a command that starts others; it measures."""
        worker = self.machines.worker(*through)
        self.machines.until(worker, lambda text: "felix worker: measures on" in text, 240)
        return worker

    def submit(self, n_trials: int, seed: int) -> int:
        """Queue a job; its number."""
        return self.client.submit(
            "gemm",
            {"m": 64, "n": 64, "k": 64},
            trials=n_trials,
            reuse=False,
            seed=seed,
            options={"round_size": 8},
        ).id

    def submit_network(self, path: pathlib.Path) -> int:
        """Queue a job that puts the network of an ONNX file together; its number."""
        return self.client.submit_file(path, trials=8, options={"round_size": 4}).id

    def wait(self, job_id: int, is_so: Callable[[client.Job], bool], seconds: float) -> client.Job:
        """The job, once something is so."""
        until_s = time.monotonic() + seconds
        while not is_so(job := self.client.job(job_id)):
            assert time.monotonic() < until_s, (job, self.machines.log(self.tuner))
            time.sleep(0.1)
        return job

    def close(self) -> None:
        """End all."""
        self.machines.close()
        self.db.close()

    def felix(self, *arguments: str) -> subprocess.Popen[bytes]:
        """Start a command of Felix."""
        return self.machines.start(sys.executable, "-m", "felix", *arguments)


def actors(worker: subprocess.Popen[bytes]) -> list[psutil.Process]:
    """The processes of the nodes that a worker keeps."""
    below = psutil.Process(worker.pid).children(recursive=True)
    return [each for each in below if each.name().startswith("ray::Node")]


#: Addresses of the two ends, of a block for tests (RFC 2544).
HERE, THERE = "198.18.7.1", "198.18.7.2"


class Namespace:
    """A network namespace and the pair of interfaces that joins it to this one."""

    def __init__(self) -> None:
        self.name = f"felix{os.getpid()}"
        self._here, self._there = f"fx{os.getpid()}a", f"fx{os.getpid()}b"

    @property
    def within(self) -> tuple[str, ...]:
        """A command that starts others in it."""
        return "ip", "netns", "exec", self.name

    def make(self) -> None:
        """Make it; CalledProcessError if this user may not."""
        _ip("netns", "add", self.name)
        _ip(*f"link add {self._here} type veth peer name {self._there} netns {self.name}".split())
        _ip("addr", "add", f"{HERE}/30", "dev", self._here)
        _ip("-n", self.name, "addr", "add", f"{THERE}/30", "dev", self._there)
        _ip("-n", self.name, "link", "set", "lo", "up")
        _ip("-n", self.name, "link", "set", self._there, "up")
        self.join()

    def cut(self) -> None:
        """Let nothing through."""
        _ip("link", "set", self._here, "down")

    def join(self) -> None:
        """Let everything through."""
        _ip("link", "set", self._here, "up")

    def remove(self) -> None:
        """Remove what there is of it."""
        for command in (("link", "del", self._here), ("netns", "del", self.name)):
            with contextlib.suppress(subprocess.CalledProcessError):
                _ip(*command)


@contextlib.contextmanager
def namespace() -> Iterator[Namespace | str]:
    """A namespace, or why none can be made."""
    if shutil.which("ip") is None:
        yield "there is no command ip"
        return
    made = Namespace()
    try:
        made.make()
    except subprocess.CalledProcessError as error:
        made.remove()
        yield f"network namespaces cannot be made: {error.stderr.strip()}"
        return
    try:
        yield made
    finally:
        made.remove()


def _ip(*arguments: str) -> None:
    subprocess.run(("ip", *arguments), check=True, capture_output=True, text=True)
