"""Nodes that sleep where others build and run, and the cluster that they are.

A binary holds the digest of its program, so a node knows what it runs: a candidate has the same
made-up latency wherever it runs, and `Node.ran` says what ran.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tvm

from felix import target, version
from felix.builder import payload
from felix.measure.cluster import messages, pool
from felix.runner import protocol
from felix.runner.description import Description

#: The GPU that devices are, and its target.
TARGET = "h200"
#: Of pools over such nodes: a noise probe would be a candidate that nobody asked for.
OPTIONS = pool.ClusterOptions(noise_probe=False)
_DIGEST_BYTES = 32


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """What things take, in seconds; of a candidate where nothing else is said."""

    build_s: float = 0.0
    run_s: float = 0.0
    #: for the reference of a task
    prepare_s: float = 0.0
    #: for a request to a node and its reply
    network_s: float = 0.0
    #: size of what a build makes
    binary_bytes: int = _DIGEST_BYTES


class Node:
    """Says what `felix.measure.cluster.node.Node` says, in this process or as an actor of Ray.

    Args:
        times: of its work.
        builders: programs that it builds at a time.
        has_device: whether it runs candidates.
        running: entered while a request runs, as long as it takes.
        sleep: waits for so many seconds.
    """

    def __init__(
        self,
        times: Times,
        builders: int,
        has_device: bool,
        running: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._times, self._builders, self._has_device = times, builders, has_device
        self._running, self._sleep = running, sleep
        self._device = threading.Lock()
        #: digests of the programs that ran, in order; a task's fastest, by which devices are
        #: compared, once more
        self.ran: list[str] = []

    def facts(self) -> str:
        """What the node is and does."""
        kind = messages.of(target.parse(TARGET))
        device = {"kind": "cuda", "name": kind, "cache_bytes": 0, "index": 0, "visible": ""}
        return messages.write(
            felix=version.__version__,
            tvm=tvm.__version__,
            payload=payload.VERSION,
            host="simulated",
            builders=self._builders,
            kind=kind if self._has_device else "",
            device=device if self._has_device else None,
        )

    def build(self, text: str) -> tuple[str, bytes]:
        """Build a program: a binary that names it."""
        program = messages.read(text)["payload"]
        self._wait(self._times.build_s)
        digest = hashlib.sha256(program.encode()).digest()
        reply = messages.write(suffix=".cubin", build_s=self._times.build_s)
        return reply, digest.ljust(self._times.binary_bytes, b"\0")

    def reference(self, text: str) -> tuple[str, bytes]:
        """Make a task's reference: a description of nothing."""
        messages.read(text)
        described = Description(
            device="cuda", target="sm_90", arguments=(), tolerance=0.0, seed=0
        ).to_json()
        return messages.write(description=described, suffix=".cubin", build_s=0.0), b"reference"

    def open(self, arch: str) -> str:
        """Open the device."""
        return messages.write()

    def prepare(self, text: str, binaries: list[bytes]) -> str:
        """Run a task's reference."""
        messages.read(text)
        with self._device:
            self._wait(self._times.prepare_s)
        return messages.write()

    def run(self, text: str, binaries: list[bytes]) -> str:
        """Time candidates, one after another."""
        messages.read(text)
        with self._device, self._running():
            results = [self._run(content[:_DIGEST_BYTES].hex()) for content in binaries]
        return messages.write(results=results)

    def interrupt(self, client: str) -> None:
        """Nothing hangs here."""

    def _run(self, digest: str) -> dict[str, Any]:
        self.ran.append(digest)
        self._wait(self._times.run_s)
        measurement = protocol.Measurement.timed(
            [latency_us(digest)] * 3, run_s=self._times.run_s, checked=True, device="simulated"
        )
        return messages.of_measurement(measurement)

    def _wait(self, seconds: float) -> None:
        if seconds:
            self._sleep(seconds)


def latency_us(digest: str) -> float:
    """10 to 100 us, the same for the same program."""
    return 10.0 * 10.0 ** (int(digest[:8], 16) / 0xFFFFFFFF)


class Link:
    """A `remote.Link` to a node of this process."""

    def __init__(self, node: Node, times: Times) -> None:
        self._node, self._times = node, times

    def call(self, method: str, *args: Any) -> Any:
        """Call a method of the node."""
        if self._times.network_s:
            time.sleep(self._times.network_s)
        return getattr(self._node, method)(*args)

    def await_return(self) -> bool:
        """It is never away."""
        return True


class Cluster:
    """A `pool.Cluster` of one node for each device and one that builds for all.

    Args:
        n_devices: that candidates run on.
        n_builders: programs that are built at a time.
        times: of all nodes.
        sleep: see `Node`.
    """

    def __init__(
        self,
        n_devices: int,
        n_builders: int,
        times: Times,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._times = times
        self._counting = threading.Lock()
        self._n_busy = 0
        #: devices that ran candidates at the same time, at most
        self.most_busy = 0
        self.devices = [Node(times, 0, True, self._busy, sleep) for _ in range(n_devices)]
        builds = Node(times, n_builders, False, sleep=sleep)
        self._nodes = {str(number): node for number, node in enumerate([builds, *self.devices])}

    @property
    def ran(self) -> list[str]:
        """Digests of the programs that ran, on any node."""
        return [digest for node in self.devices for digest in node.ran]

    def members(self) -> Sequence[pool.Member]:
        """All nodes."""
        return [
            pool.from_facts(name, messages.read(node.facts()), {"version": messages.VERSION})
            for name, node in self._nodes.items()
        ]

    def link(self, member: pool.Member, closed: threading.Event) -> Link:
        """The way to a node."""
        return Link(self._nodes[member.name], self._times)

    @contextlib.contextmanager
    def _busy(self) -> Iterator[None]:
        with self._counting:
            self._n_busy += 1
            self.most_busy = max(self.most_busy, self._n_busy)
        try:
            yield
        finally:
            with self._counting:
                self._n_busy -= 1
