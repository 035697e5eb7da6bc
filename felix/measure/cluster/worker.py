"""A machine that measures for a cluster: its Ray node, a builder, a run worker for each device."""

from __future__ import annotations

import dataclasses
import json
import platform
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Sequence
from typing import Any, Literal

import ray

from felix import errors, target
from felix.measure import local
from felix.measure.cluster import messages, node, ray_cluster, tls
from felix.processes import foreign
from felix.runner.cuda import devices as cuda_devices
from felix.target import cpu

#: Seconds that this machine may take to become a node, and a node to be ready.
_START_S = 120.0
#: Characters of Ray's own output in an error.
_SAID = 600


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """What a machine gives to a cluster.

    Attributes:
        address: of the cluster's head, "HOST:PORT".
        devices: numbers of GPUs or "all"; "cpu": this CPU; none: it only builds.
        builders: programs that it builds at a time; None: one a core.
        key: digest of the key of a service that its nodes state; empty: none.
    """

    address: str
    devices: tuple[int, ...] | Literal["all", "cpu"]
    builders: int | None = None
    key: str = ""


class Worker:
    """A running node; it leaves the cluster when it is closed.

    Raises:
        MeasureError: this machine cannot take part; the message says what to do.
    """

    def __init__(self, settings: WorkerSettings) -> None:
        ray_cluster.require_token()
        self._settings = settings
        self._name = f"{platform.node()}-{uuid.uuid4().hex[:8]}"
        self.kind, self._numbers = _devices(settings.devices)
        self._log = tempfile.TemporaryFile()
        self._process = self._joined()
        try:
            self._actors = self._started()
        except BaseException:
            self.close()
            raise

    @property
    def is_member(self) -> bool:
        """Whether the machine is still part of the cluster."""
        return self._process.poll() is None

    def close(self) -> None:
        """Leave: candidates that are here go to other nodes."""
        ray.shutdown()
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _joined(self) -> subprocess.Popen[bytes]:
        """The process of a Ray node with the resources of this machine; it ends with us."""
        resources: dict[str, float] = {self._own: 1.0}
        if self.kind:
            resources[messages.resource(self.kind)] = float(max(1, len(self._numbers)))
        command = [
            sys.executable,
            "-m",
            "ray.scripts.scripts",
            "start",
            "--block",
            "--num-cpus=0",
            f"--num-gpus={len(self._numbers)}",
            f"--address={self._settings.address}",
            f"--resources={json.dumps(resources)}",
            "--disable-usage-stats",
        ]
        return foreign.start(command, self._log, self._log)

    @property
    def _own(self) -> str:
        """A resource that this node alone has."""
        return f"felix-node:{self._name}"

    def _started(self) -> list[Any]:
        """The actors of this node, once they are ready."""
        self._await_node()
        asked = self._settings.builders
        n_builders = cpu.available_cores() if asked is None else asked
        parts = _parts(self.kind, self._numbers, n_builders, self._settings.key)
        actors = [
            ray_cluster.start_node(
                f"{self._name}-{number}", part, self.kind if part.target else "", self._own
            )
            for number, part in enumerate(parts)
        ]
        try:
            ray.get([actor.facts.remote() for actor in actors], timeout=_START_S)
        except ray.exceptions.RayError as error:
            raise errors.MeasureError(f"the node did not start: {error}") from error
        return actors

    def _await_node(self) -> None:
        until_s = time.monotonic() + _START_S
        while time.monotonic() < until_s:
            tls.check(self._settings.address)  # the head may have come since
            if not self.is_member:  # Ray gives up after 30 s, which a busy machine may need
                self._process = self._joined()
            try:
                ray_cluster.connect(self._settings.address)
                if ray.cluster_resources().get(self._own):
                    return
            except errors.MeasureError:
                pass
            time.sleep(0.5)
        raise errors.MeasureError(
            f"this machine cannot join the cluster at {self._settings.address}: is its head there "
            "(ray start --head --port=PORT), and are token and Ray version the same? With TLS, "
            "does the certificate of each machine name its address? Ray says: "
            f"{self._said()}"
        )

    def _said(self) -> str:
        """The last of what Ray wrote when it started."""
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").split("\n")
        return " ".join(line.strip() for line in lines[-12:] if line.strip())[-_SAID:]


def _devices(chosen: tuple[int, ...] | Literal["all", "cpu"]) -> tuple[str, tuple[int, ...]]:
    """(kind of the devices, numbers of GPUs); checks what measuring on them needs.

    Raises:
        MeasureError: there is no such device, or its driver or NVRTC is missing or too old.
    """
    if chosen == "cpu":
        return messages.of(target.parse("llvm")), ()
    if chosen == ():
        return "", ()
    if chosen == "all":
        chosen = tuple(range(cuda_devices.count()))
        if not chosen:
            raise errors.MeasureError(
                "this machine has no GPU: give --devices cpu to measure on its CPU, or "
                "--devices none to build only"
            )
    devices = local.chosen(target.parse("cuda"), chosen)
    return messages.slug(devices[0].name), chosen


def _parts(kind: str, gpus: Sequence[int], n_builders: int, key: str) -> list[node.Settings]:
    """The processes of a node: on a CPU one, which does not build while it times."""
    if kind and not gpus:
        return [node.Settings(builders=n_builders, target="llvm", key=key)]
    builds = [node.Settings(builders=n_builders, key=key)] if n_builders else []
    return builds + [node.Settings(target="cuda", device=number, key=key) for number in gpus]
