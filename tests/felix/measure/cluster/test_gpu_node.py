"""A node that measures on a GPU and builds nothing, with a driver whose kernels do nothing."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator

import pytest

from felix import workloads
from felix.measure import work
from felix.measure.cluster import pool
from felix.tir.design_space import default_schedule
from tests.felix.measure.cluster import nodes
from tests.support import gpu
from tests.support.cuda import library

OPTIONS = work.LocalOptions(builders=1)
pytestmark = pytest.mark.skipif(not gpu.has_nvrtc(), reason="needs NVRTC")


@pytest.fixture
def cluster(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[nodes.Cluster]:
    library.make(tmp_path, tmp_path / "nvidia0")
    library.use(monkeypatch, tmp_path, tmp_path / "nvidia0")
    made = nodes.Cluster()
    made.add("builds", OPTIONS, builders=1)
    made.add("measures", OPTIONS, target="h200")
    yield made
    made.close()


def test_it_runs_what_another_node_has_built(cluster: nodes.Cluster) -> None:
    task = workloads.parse("gemm:8,8,8", target="h200")
    options = pool.ClusterOptions(wait_s=60, watch_s=0.05, noise_probe=False)
    with pool.ClusterPool(task, cluster, options) as over:
        (measured,) = over.measure([default_schedule.on_gpu(task.mod).mod])
        assert measured.checked, measured.message
        assert over.unconfined is None
    runs = cluster.nodes["measures"]._runs
    assert runs is not None and runs.worker.pid is not None
    assert "libtvm" not in pathlib.Path(f"/proc/{runs.worker.pid}/maps").read_text()
    (server,) = cluster.nodes["measures"]._processes.fork_servers
    assert "libtvm" not in pathlib.Path(f"/proc/{server.pid}/maps").read_text()
