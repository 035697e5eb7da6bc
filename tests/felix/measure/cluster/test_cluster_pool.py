"""Pools over nodes in this process: the contract, nodes that go, come and lie."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import tvm

from felix import errors, workloads
from felix.measure import device_thread, local, work
from felix.measure.cluster import messages, node, pool, remote
from felix.measure.measurer import Measurer
from felix.runner import protocol
from felix.runner.description import Description
from tests.felix.measure import contract
from tests.felix.measure.cluster import nodes
from tests.support import pool_programs as programs
from tests.support import share, waiting

QUICK = pool.ClusterOptions(wait_s=60, watch_s=0.05, noise_probe=False)
GEMM = tvm.IRModule({"main": programs.gemm})


@pytest.fixture(autouse=True)
def nobody_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    """These devices are cores of a machine that does other work as well: they are not compared."""
    for name in ("MAX_DIFFERENCE", "MAX_PRIMARY_DIFFERENCE"):
        monkeypatch.setattr(device_thread, name, 0.99)


@pytest.fixture(scope="module")
def cluster() -> Iterator[nodes.Cluster]:
    made = nodes.Cluster()
    made.add("builds", programs.OPTIONS, builders=2)
    for name in ("first", "second"):
        made.add(name, programs.OPTIONS, target="llvm")
    yield made
    made.close()


@pytest.fixture
def over(cluster: nodes.Cluster) -> Iterator[pool.ClusterPool]:
    cluster.links.clear()
    with pool.ClusterPool(contract.task(), cluster, QUICK) as made:
        yield made


@pytest.mark.parametrize("where, holds", share.crossed(["local", "cluster"], contract.EVERY))
def test_contract(holds: Callable[[Measurer], None], where: str, cluster: nodes.Cluster) -> None:
    if where == "local":
        with local.LocalPool(contract.task(), programs.OPTIONS) as measurer:
            holds(measurer)
    else:
        with pool.ClusterPool(contract.task(), cluster, QUICK) as over:
            holds(over)


def _results(measurer: Measurer, number: int) -> list[protocol.Measurement]:
    return [each.result(60) for each in [measurer.submit(GEMM) for _ in range(number)]]


def test_a_node_that_is_lost_loses_no_candidate(
    cluster: nodes.Cluster, over: pool.ClusterPool
) -> None:
    assert all(each.ok for each in _results(over, 2))
    lost = cluster.links["first"]
    futures = [over.submit(GEMM) for _ in range(16)]
    lost.before = lambda method: lost.cut.set() if method == "run" else None
    results = [future.result(60) for future in futures]
    assert [each.error for each in results] == [None] * 16
    assert over.n_devices == 1
    lost.before = lambda method: None
    lost.cut.clear()
    waiting.until(lambda: over.n_devices == 2)
    assert all(each.ok for each in _results(over, 4))


def test_a_node_that_joins_helps_after_it_is_compared(cluster: nodes.Cluster) -> None:
    growing = cluster.part("builds", "first")
    with pool.ClusterPool(contract.task(), growing, QUICK) as over:
        assert _results(over, 1)[0].ok and over.n_devices == 1
        growing.facts["second"] = cluster.facts["second"]
        waiting.until(lambda: over.n_devices == 2)
        assert all(each.ok for each in _results(over, 12))
        assert growing.links["second"].calls.count("run") >= 2  # the first compares devices
        assert 1 in over._task.scales


def test_a_dead_node_gives_what_it_had_to_one_that_comes(cluster: nodes.Cluster) -> None:
    changing = cluster.part("builds", "first")
    with pool.ClusterPool(contract.task(), changing, QUICK) as over:
        assert _results(over, 1)[0].ok
        changing.links["first"].dead.set()
        futures = [over.submit(GEMM) for _ in range(4)]
        time.sleep(0.3)
        changing.facts["second"] = cluster.facts["second"]
        assert all(future.result(60).ok for future in futures)


def test_a_candidate_that_loses_every_node_fails_as_infrastructure(cluster: nodes.Cluster) -> None:
    flaky = cluster.part("builds", "first")
    with pool.ClusterPool(contract.task(), flaky, QUICK) as over:
        assert _results(over, 1)[0].ok
        link = flaky.links["first"]
        link.mends = True
        link.before = lambda method: link.cut.set() if method == "run" else None
        measured = over.submit(GEMM).result(60)
        assert measured.error is protocol.ErrorClass.INFRASTRUCTURE
        assert "nobody answers" in measured.message
        assert link.calls.count("run") == 4


def test_what_a_node_fails_another_one_tries(
    cluster: nodes.Cluster, over: pool.ClusterPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when its processes end one after another because the machine goes down."""
    assert _results(over, 1)[0].ok
    said = GOOD | {"latencies_us": [], "error": "infrastructure", "message": "the worker died"}

    def fail(text: str, binaries: list[bytes]) -> str:
        return messages.write(results=[said] * len(binaries))

    failing = cluster.nodes["first"]
    with monkeypatch.context() as patch:
        patch.setattr(failing, "run", fail)
        patch.setattr(cluster.links["first"], "await_return", lambda: over._stopped.wait(2))
        assert all(each.ok for each in _results(over, 12))
    build = {"error": "infrastructure", "message": "no disk", "build_s": 0.1}
    link = _Says((_message(**build), b""))
    with pytest.raises(work.WorkerGone, match="no disk"):
        remote.RemoteBuilder(link, over._folders.libraries, "cpu").build("{}", "name")


def test_no_node_of_the_kind_is_said(cluster: nodes.Cluster) -> None:
    only = cluster.part("builds")
    options = pool.ClusterOptions(wait_s=0.1, watch_s=0.05)
    with pytest.raises(errors.MeasureError, match=r"measures on .*; there are: builders only"):
        pool.ClusterPool(contract.task(), only, options)
    only = cluster.part("first")
    with pytest.raises(errors.MeasureError, match=r"builds programs.*felix worker"):
        pool.ClusterPool(contract.task(), only, options)


def test_a_node_of_other_versions_takes_no_part(cluster: nodes.Cluster) -> None:
    old = cluster.part("first")
    old.facts["first"] = cluster.facts["first"] | {"felix": "0.0.9"}
    options = pool.ClusterOptions(wait_s=0.1, watch_s=0.05)
    with pytest.raises(errors.MeasureError, match=r"it has felix '0.0.9', not '0.1.0'"):
        pool.ClusterPool(contract.task(), old, options)


def _serves(made: node.Node, client: pool.ClusterPool) -> bool:
    request = made._request
    return request is not None and request.client == client._client


def test_interrupting_ends_what_this_pool_runs_alone(
    cluster: nodes.Cluster, over: pool.ClusterPool
) -> None:
    with pool.ClusterPool(contract.task(), cluster, QUICK) as other:
        assert _results(over, 1)[0].ok and _results(other, 1)[0].ok
        hanging = over.submit(tvm.IRModule({"main": programs.hang}))
        waiting.until(lambda: any(_serves(each, over) for each in cluster.nodes.values()))
        other.interrupt()
        assert not hanging.done()
        over.interrupt()
        assert hanging.result(10).error is protocol.ErrorClass.INFRASTRUCTURE
        assert _results(over, 1)[0].ok


def test_another_task_of_the_same_target_shares_the_nodes(over: pool.ClusterPool) -> None:
    softmax = workloads.parse("softmax:16x64", target="llvm")
    (measured,) = over.for_task(softmax).measure([softmax.mod])
    assert measured.ok and measured.checked
    with pytest.raises(errors.MeasureError, match="measures llvm, not cuda"):
        over.for_task(workloads.gemm(16, 16, 16, target="cuda -arch sm_90"))


def test_a_node_that_forgot_a_task_is_told_again(
    cluster: nodes.Cluster, over: pool.ClusterPool
) -> None:
    assert _results(over, 2)[0].ok
    for made in cluster.nodes.values():
        made._states.clear()
    assert all(each.ok for each in _results(over, 4))


DESCRIPTION = Description(
    device="cpu", target="llvm", arguments=(), tolerance=0.0, seed=0
).to_json()


class _Says:
    """A link to a node that was taken over."""

    def __init__(self, reply: Any) -> None:
        self.reply = reply

    def call(self, method: str, *args: Any) -> Any:
        return self.reply

    def await_return(self) -> bool:
        return True


def _message(**fields: Any) -> str:
    return json.dumps({"version": messages.VERSION} | fields)


@pytest.mark.parametrize(
    ("method", "text"),
    [
        ("build", "no JSON"),
        ("build", _message(suffix="/../../x.so", build_s=1.0)),
        ("build", _message(suffix=".so")),
        ("build", _message(error="no class", message="", build_s=1.0)),
        ("build", json.dumps({"version": 99, "suffix": ".so", "build_s": 1.0})),
        ("reference", _message(build_s=1.0, suffix=".so")),
        ("reference", _message(build_s=1.0, suffix=".so", description="{}")),
        ("reference", _message(build_s=1.0, suffix=".so", description=7)),
        ("reference", _message(build_s=1.0, suffix=".so", description="x" * (1 << 20))),
        ("reference", _message(build_s=1.0, suffix=".py", description=DESCRIPTION)),
        ("reference", _message(build_s=1.0, suffix=[], description=DESCRIPTION)),
    ],
)
def test_a_forged_reply_is_an_infrastructure_error(method: str, text: str, tmp_path: Any) -> None:
    builder = remote.RemoteBuilder(_Says((text, b"x")), tmp_path, "cpu")
    made = getattr(builder, method)("{}", "name")
    assert made.error is protocol.ErrorClass.INFRASTRUCTURE and made.message
    assert list(tmp_path.iterdir()) == []


def test_a_reference_comes_as_data(tmp_path: Any) -> None:
    for suffix, content in ((".so", b"x"), (".outputs", b"y")):
        says = _Says((_message(build_s=1.0, suffix=suffix, description=DESCRIPTION), content))
        made = remote.RemoteBuilder(says, tmp_path, "cpu").reference("{}", "name")
        assert (made.error, made.description) == (None, DESCRIPTION)
        assert made.binary == str(tmp_path / f"name{suffix}")


def test_devices_get_descriptions_and_no_programs(cluster: nodes.Cluster) -> None:
    alone = cluster.part("builds", "first")
    with pool.ClusterPool(contract.task(), alone, QUICK) as over:
        assert _results(over, 1)[0].checked
    of_builder, of_device = (alone.links[name].said for name in ("builds", "first"))
    assert of_builder.keys() >= {"build", "reference"} and of_device.keys() >= {"prepare", "run"}
    assert len(of_builder["reference"]) == 1
    texts = [text for every in of_device.values() for text in every]
    assert not any("payload" in text or "tirx" in text for text in texts)


def test_what_is_too_large_is_refused(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "MAX_BINARY_BYTES", 1 << 20)
    says = _Says((_message(suffix=".so", build_s=1.0), b"x" * (2 << 20)))
    made = remote.RemoteBuilder(says, tmp_path, "cpu").build("{}", "name")
    assert made.error is protocol.ErrorClass.INFRASTRUCTURE and "2 MiB" in made.message
    monkeypatch.setattr(messages, "MAX_TEXT_BYTES", 100)
    with pytest.raises(errors.MeasureError, match="too large"):
        messages.write(payload="x" * 200)


GOOD = {
    "latencies_us": [1.0, 2.0, 3.0],
    "error": None,
    "message": "",
    "run_s": 0.1,
    "checked": True,
    "device": "cpu",
}


@pytest.mark.parametrize(
    "change",
    [
        {"latencies_us": [1.0, -2.0]},
        {"latencies_us": [float("nan")]},
        {"latencies_us": []},
        {"latencies_us": ["fast"]},
        {"error": "unknown"},
        {"run_s": -1.0},
        {"run_s": None},
    ],
)
def test_a_forged_measurement_is_refused(change: dict[str, Any]) -> None:
    assert messages.measurement(GOOD, 0.5).latency_us == 2.0
    with pytest.raises(errors.MeasureError, match="no measurement"):
        messages.measurement(GOOD | change, 0.5)


def test_measurements_go_through_messages() -> None:
    failed = protocol.Measurement(error=protocol.ErrorClass.LAUNCH, message="crashed", run_s=1.0)
    assert messages.measurement(messages.of_measurement(failed), 0.0) == failed
    timed = protocol.Measurement.timed([3.0, 1.0, 2.0], run_s=0.5, checked=True, device="x")
    assert messages.measurement(messages.of_measurement(timed), 0.0) == timed


def test_builds_of_one_node_go_on_at_the_same_time(cluster: nodes.Cluster) -> None:
    building = threading.Barrier(2)

    def meet(method: str) -> None:
        if method == "build":
            building.wait(20)

    with pool.ClusterPool(contract.task(), cluster, QUICK) as over:
        cluster.links["builds"].before = meet
        assert all(each.ok for each in _results(over, 2))


def test_kinds_are_names_of_devices() -> None:
    assert messages.slug("NVIDIA H200") == "nvidia-h200"
    assert messages.slug("NVIDIA GeForce RTX 4090 (AD102)") == "nvidia-geforce-rtx-4090-ad102"
    assert messages.of(tvm.target.Target("llvm")) == messages.of(contract.task().target)
    assert messages.resource("nvidia-h200") == "felix-device:nvidia-h200"
