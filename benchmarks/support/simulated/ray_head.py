"""A Ray cluster of one machine: a head with nodes on it, and this process as tuner."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from benchmarks.support import common
from felix import errors

if TYPE_CHECKING:
    from felix.measure.cluster import ray_cluster

#: A resource that the head has, so that nodes can be started on it.
_HERE = "felix-node:head"
_START_S = 120.0
_OBJECTS_BYTES = 200_000_000


@contextlib.contextmanager
def cluster(kinds: tuple[str, ...]) -> Iterator[ray_cluster.RayCluster]:
    """A cluster with a token, whose head has a device of each of these kinds.

    Raises:
        MeasureError: it does not start.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    # Ray makes sockets in it, whose paths are limited to 107 bytes
    folder = tempfile.mkdtemp(prefix="felix-ray-", dir="/tmp")
    os.environ |= {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(16),
        "PYTHONPATH": str(common.ROOT),
        "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
    }
    from felix.measure.cluster import messages

    resources = {_HERE: 1} | {messages.resource(kind): 1 for kind in kinds}
    command = [
        sys.executable,
        "-m",
        "ray.scripts.scripts",
        "start",
        "--head",
        "--block",
        "--num-cpus=0",
        "--node-ip-address=127.0.0.1",
        f"--port={port}",
        f"--resources={json.dumps(resources)}",
        "--include-dashboard=false",
        "--disable-usage-stats",
        f"--temp-dir={folder}",
        f"--object-store-memory={_OBJECTS_BYTES}",
    ]
    quiet = subprocess.DEVNULL
    head = subprocess.Popen(command, stdout=quiet, stderr=quiet, cwd=folder)
    try:
        yield _connected(f"127.0.0.1:{port}")
    finally:
        import ray

        ray.shutdown()
        head.terminate()
        try:
            head.wait(20)
        except subprocess.TimeoutExpired:
            head.kill()
            head.wait()
        shutil.rmtree(folder, ignore_errors=True)


def _connected(address: str) -> ray_cluster.RayCluster:
    from felix.measure.cluster import ray_cluster

    until_s = time.monotonic() + _START_S
    while True:
        try:
            return ray_cluster.connect(address)
        except errors.MeasureError:
            if time.monotonic() > until_s:
                raise
            time.sleep(1.0)


def start(name: str, node: type, *args: Any, kind: str = "") -> Any:
    """Make a node an actor of the head; its handle, which keeps it alive.

    Args:
        name: of the actor.
        node: its class.
        args: of the node.
        kind: of its device; empty: it has none.
    """
    import ray

    from felix.measure.cluster import messages, ray_cluster

    resources = {_HERE: 0.001} | ({messages.resource(kind): 1} if kind else {})
    actor = (
        ray.remote(node)
        .options(
            name=name,
            namespace=ray_cluster.NAMESPACE,
            num_cpus=0,
            resources=resources,
            max_concurrency=8,
        )
        .remote(*args)
    )
    ray.get(actor.facts.remote(), timeout=_START_S)
    return actor
