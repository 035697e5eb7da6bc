"""The link of an engine to a cluster, over nodes in this process: no Ray, no network."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from multiprocessing.connection import Connection, Pipe
from typing import Any

import pytest
import tvm

from felix import errors
from felix.measure import device_thread, work
from felix.measure.cluster import messages, pool
from felix.runner import protocol
from server.tuner import places
from server.tuner.cluster import calls, relay, relayed
from tests.felix.measure import contract
from tests.felix.measure.cluster import nodes
from tests.support import pool_programs as programs
from tests.support.waiting import until

GEMM = tvm.IRModule({"main": programs.gemm})


class Link(nodes.Link):
    def answers(self) -> bool | None:
        return None if self.dead.is_set() else not self.cut.is_set()


class Cluster(nodes.Cluster):
    """Nodes that say how they are."""

    def link(self, member: pool.Member, closed: threading.Event) -> Link:
        self.links[member.name] = Link(self.nodes[member.name], closed)
        return self.links[member.name]  # type: ignore[return-value]

    def statuses(self, names: Sequence[str]) -> Mapping[str, dict[str, Any]]:
        cut = {name for name, link in self.links.items() if link.cut.is_set()}
        return {
            name: messages.read(self.nodes[name].status()) for name in names if name not in cut
        }


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MAX_DIFFERENCE", "MAX_PRIMARY_DIFFERENCE"):
        monkeypatch.setattr(device_thread, name, 0.99)
    monkeypatch.setattr(relay, "WATCH_S", 0.05)
    monkeypatch.setattr(relayed, "_AGAIN_S", 0.05)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    made = Cluster()
    made.add("builds", programs.OPTIONS, builders=2)
    made.add("first", programs.OPTIONS, target="llvm")
    yield made
    made.close()


@pytest.fixture
def served(cluster: Cluster) -> relay.Relay:
    cluster.links.clear()
    return relay.Relay(cluster)


def joined(served: relay.Relay, *, of_tuner: bool = False) -> Connection:
    """A pipe to the link, as an engine has one, or the tuner."""
    ours, theirs = socket.socketpair()
    threading.Thread(
        target=served.serve,
        args=(Connection(theirs.detach()),),
        kwargs={"of_tuner": of_tuner},
        daemon=True,
    ).start()
    return Connection(ours.detach())


@pytest.fixture
def there(served: relay.Relay) -> Iterator[places.OnCluster]:
    made = places.OnCluster(joined(served))
    yield made
    made.close()


def _is_hanging(node: Any) -> bool:
    """Whether one request stays, unlike a short one of before."""
    request = node._request
    time.sleep(1.0)
    return request is not None and node._request is request


def test_an_engine_measures_through_the_link(there: places.OnCluster) -> None:
    (device,) = there.devices()
    assert device["fault"] is None and device["kind"] == "llvm"
    assert device["target_keys"][0] == "llvm" and device["hardware"]["cores"] >= 1
    with contextlib.closing(there.pool(contract.task())) as over:
        measured = over.for_task(contract.task()).measure([GEMM, GEMM])
    assert all(each.ok and each.checked for each in measured)


def test_a_target_is_completed_by_the_device(there: places.OnCluster) -> None:
    (device,) = there.devices()
    parsed = there.resolve("llvm -num-cores 1", device)
    assert parsed.attrs["num-cores"] == 1 and parsed.attrs["mcpu"] == device["target"]["mcpu"]
    assert there.device(device["target_keys"][-1]) == device
    with pytest.raises(errors.NoDevice, match="has no cuda now"):
        there.device("cuda")
    assert not there.are_here  # so the engine builds networks and does not run them


def test_a_node_that_is_cut_off_is_no_device_for_now(
    there: places.OnCluster, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay, "SILENT_S", 0.2)
    monkeypatch.setattr("server.tuner.warm_pools.LOST_S", 0.1)
    with contextlib.closing(there.pool(contract.task())) as over:
        view = over.for_task(contract.task())
        assert view.measure([GEMM])[0].ok and there.lost is None
        cluster.links["first"].cut.set()
        until(lambda: there.devices()[0]["fault"] == "the node does not answer")
        waiting = view.submit(GEMM)
        until(lambda: there.lost is not None)
        assert "no device can be reached" in str(there.lost) and not waiting.done()
        cluster.links["first"].cut.clear()
        assert waiting.result(300).ok
        until(lambda: there.lost is None and there.devices()[0]["fault"] is None)


def test_without_builders_no_device_is_of_use(cluster: Cluster) -> None:
    only = Cluster()
    only.nodes, only.facts = cluster.nodes, {"first": cluster.facts["first"]}
    (device,) = relay.Relay(only).devices()
    assert device["fault"] == "no node of the cluster builds programs"


def test_an_engine_may_call_what_is_listed_only(served: relay.Relay) -> None:
    link = calls.Calls(joined(served))
    for verb, arguments in [
        ("call", ["first", "close", "now"]),
        ("call", ["first", "__init__", ""]),
        ("call", ["first", "run", 5]),
        ("stop", []),
        ("members", ["all"]),
        ("nodes", []),
        ("admit", [{"first": None}]),
    ]:
        with pytest.raises(errors.MeasureError, match="no verb"):
            link.ask(verb, *arguments)
    with pytest.raises(errors.MeasureError):
        link.ask("call", "first", "run", "no message")
    with pytest.raises(calls.Gone, match="left the cluster"):
        link.ask("call", "nobody", "prepare", "{}")
    assert link.ask("answers", "first") == (True, [])  # it serves on


@pytest.mark.parametrize("reply", [b"a pickle?", 17, ("text",), "x" * 2000, ("text", b"x" * 2000)])
def test_what_is_no_reply_or_too_large_goes_no_further(
    reply: Any, served: relay.Relay, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(messages, "MAX_TEXT_BYTES", 1000)
    monkeypatch.setattr(messages, "MAX_BINARY_BYTES", 1000)
    link = calls.Calls(joined(served))
    monkeypatch.setattr(cluster.nodes["first"], "prepare", lambda text, binaries: reply)
    with pytest.raises(errors.MeasureError):
        link.ask("call", "first", "prepare", "{}")
    assert link.ask("answers", "first")[0] is True


def test_what_runs_for_an_engine_that_died_is_ended(served: relay.Relay, cluster: Cluster) -> None:
    connection = joined(served)
    engine = places.OnCluster(connection)
    view = engine.pool(contract.task()).for_task(contract.task())
    assert view.measure([GEMM])[0].ok
    hanging = view.submit(tvm.IRModule({"main": programs.hang}))
    until(lambda: _is_hanging(cluster.nodes["first"]))
    _shut_down(connection)
    until(lambda: engine.lost == "the link to the cluster is gone")
    until(lambda: "interrupt" in cluster.links["first"].calls)
    until(lambda: cluster.nodes["first"]._request is None)
    engine.close()
    assert hanging.result(300).error is protocol.ErrorClass.INFRASTRUCTURE


@pytest.fixture
def keyed(cluster: Cluster) -> relay.Relay:
    """A link whose nodes need keys."""
    cluster.links.clear()
    return relay.Relay(cluster, needs_keys=True)


def test_nodes_are_not_there_until_they_are_judged(keyed: relay.Relay) -> None:
    tuner, engine = calls.Calls(joined(keyed, of_tuner=True)), calls.Calls(joined(keyed))
    for verb in ("devices", "members"):
        assert engine.ask(verb) == ([], [])
    with pytest.raises(calls.Gone, match="its key was not looked at yet"):
        engine.ask("call", "builds", "build", "{}")
    stated, _ = tuner.ask("nodes")
    assert {each["name"]: (len(each["kinds"]), each["key"]) for each in stated} == {
        "builds": (0, ""),
        "first": (1, ""),
    }
    with pytest.raises(errors.MeasureError, match="no verb 'admit'"):
        engine.ask("admit", {"builds": None, "first": None})
    tuner.ask("admit", {"builds": None, "first": "needs a key"})
    (device,), _ = engine.ask("devices")
    assert device["fault"] == "needs a key"
    members, _ = engine.ask("members")
    assert {each["name"]: each["unfit"] for each in members} == {
        "builds": None,
        "first": "needs a key",
    }
    with pytest.raises(calls.Gone, match="the node needs a key"):
        engine.ask("call", "first", "prepare", "{}")
    tuner.ask("admit", {"builds": "needs a key", "first": None})
    (device,), _ = engine.ask("devices")
    assert device["fault"] == "no node of the cluster builds programs"
    tuner.ask("admit", {"builds": None, "first": None})
    assert engine.ask("devices")[0][0]["fault"] is None


def test_a_node_whose_key_is_revoked_leaves_a_pool_that_it_works_for(
    keyed: relay.Relay, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("server.tuner.warm_pools.LOST_S", 0.1)
    tuner = calls.Calls(joined(keyed, of_tuner=True))
    tuner.ask("admit", {"builds": None, "first": None})
    engine = places.OnCluster(joined(keyed))
    with contextlib.closing(engine), contextlib.closing(engine.pool(contract.task())) as over:
        view = over.for_task(contract.task())
        assert view.measure([GEMM])[0].ok
        hanging = view.submit(tvm.IRModule({"main": programs.hang}))
        until(lambda: _is_hanging(cluster.nodes["first"]))
        tuner.ask("admit", {"builds": None, "first": "needs a key"})
        until(lambda: engine.lost is not None)
        assert "needs a key" in str(engine.lost) and not hanging.done()  # nor is the node
        waiting = view.submit(GEMM)
        n_runs = cluster.links["first"].calls.count("run")
        tuner.ask("admit", {"builds": None, "first": None})
        time.sleep(0.3)
        assert not waiting.done() and cluster.links["first"].calls.count("run") == n_runs
        request = cluster.nodes["first"]._request
        if request is not None:  # it was not at its time limit yet
            cluster.nodes["first"].interrupt(request.client)


def test_a_link_that_ends_fails_all_that_waits() -> None:
    ours, theirs = Pipe()
    link = calls.Calls(ours)
    threading.Timer(0.1, theirs.close).start()
    with pytest.raises(calls.Gone):
        link.ask("devices")
    with pytest.raises(calls.Gone):
        link.ask("devices")
    closed = threading.Event()
    assert not relayed.RelayedLink(link, "first", closed).await_return()
    with pytest.raises(work.WorkerGone):
        relayed.RelayedLink(link, "first", closed).call("open", "sm_90")


def test_nobody_waits_for_a_pool_that_is_closed() -> None:
    ours, theirs = Pipe()
    closed = threading.Event()
    threading.Timer(0.1, closed.set).start()
    with pytest.raises(work.WorkerGone, match="closed"):
        relayed.RelayedLink(calls.Calls(ours), "first", closed).call("open", "sm_90")
    theirs.close()


def _shut_down(connection: Connection) -> None:
    with socket.socket(fileno=os.dup(connection.fileno())) as end:
        end.shutdown(socket.SHUT_RDWR)
