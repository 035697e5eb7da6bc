"""The process that alone talks to a cluster: `link` starts it.

    python -m server.tuner.cluster.relay FD HOST:PORT LOG_JSON NEEDS_KEYS

It has the cluster's token and no database. It knows who is there, calls nodes for engines, and
asks nodes again and again whether they answer. What an engine may call is listed, and what a node
replies is measured before it goes on.

Its first packet on the socket FD is "ready" once it is in the cluster, or says why it cannot be.
Each packet that comes brings a pipe to serve and says whose it is (`calls.Side`). It ends with its
tuner.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import functools
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Mapping
from multiprocessing.connection import Connection
from typing import Any

from felix import errors, target
from felix.measure import work
from felix.measure.cluster import messages, pool, ray_cluster
from felix.processes import syscalls
from felix.target import Hardware
from server import logs
from server.parsing import devices
from server.tuner.cluster import calls

_log = logs.of(__name__)

#: What an engine may ask of a node.
METHODS = frozenset({"build", "reference", "open", "prepare", "run", "interrupt"})
#: Of a node that has not answered for so long, in seconds, nothing is expected for now.
SILENT_S = 10.0
#: Between two questions to all nodes, in seconds.
WATCH_S = 1.0
#: How often a call looks whether its node still may measure, in seconds.
_LOOK_S = 0.5


class Relay:
    """Serves any number of pipes.

    Args:
        cluster: whose nodes measure.
        needs_keys: whether the tuner says which of them may (`admit`); one that it has not judged
            yet is not there for engines.
    """

    def __init__(self, cluster: ray_cluster.RayCluster, needs_keys: bool = False) -> None:
        self._cluster = cluster
        #: why nodes may not measure, by name; None: all may
        self._refusals: Mapping[str, str | None] | None = {} if needs_keys else None
        #: nodes are called by its threads, so that nobody waits for one that may no longer measure
        self._callers = concurrent.futures.ThreadPoolExecutor(calls.MAX_CALLS, "node")
        self._closed = threading.Event()
        self._members: dict[str, pool.Member] = {}
        self._links: dict[str, ray_cluster.RayLink] = {}
        self._statuses: dict[str, dict[str, Any]] = {}
        self._heard_s: dict[str, float] = {}
        self._described: dict[str, dict[str, Any]] = {}
        self.look()
        threading.Thread(target=self._watch, name="members", daemon=True).start()

    def serve(self, connection: Connection, *, of_tuner: bool = False) -> None:
        """Serve a pipe until its other side is gone: an engine, or the tuner itself."""
        session = _Session(self, of_tuner)
        calls.serve(connection, session.answer)
        session.close()

    def look(self) -> None:
        """See who is there, and who answers."""
        self._members = {member.name: member for member in self._cluster.members()}
        names = [name for name, member in self._members.items() if member.unfit is None]
        for name, status in self._cluster.statuses(names).items():
            self._statuses[name], self._heard_s[name] = status, time.monotonic()
        gone: dict[str, Any]
        for gone in (self._statuses, self._heard_s, self._links, self._described):
            for name in gone.keys() - self._members.keys():
                gone.pop(name, None)

    def nodes(self) -> list[dict[str, Any]]:
        """What the tuner judges: fit nodes, as `server.store.tuners.Node`."""
        return [
            {"name": member.name, "kinds": kinds_of(member), "key": member.key}
            for member in list(self._members.values())
            if member.unfit is None
        ]

    def admit(self, refusals: Mapping[str, str | None]) -> None:
        """Take why nodes may not measure from now on, by name; None: they may."""
        if self._refusals is not None:
            self._refusals = dict(refusals)

    def members(self) -> list[dict[str, Any]]:
        """All nodes that are known; their keys are the tuner's concern."""
        return [
            dataclasses.asdict(dataclasses.replace(member, key="")) for member in self._judged()
        ]

    def devices(self) -> list[dict[str, Any]]:
        """All devices, as `server.parsing.devices.described`; with a `fault` if of no use."""
        members = self._judged()
        builds = any(m.builders and m.unfit is None and self._silence(m) is None for m in members)
        return [
            self._device(member, None if builds else "no node of the cluster builds programs")
            for member in members
            if member.about is not None
        ]

    def link(self, name: str) -> ray_cluster.RayLink:
        """The way to a node.

        Raises:
            Gone: there is none of this name, or it may not measure.
        """
        member = self._members.get(name)
        if member is None:
            raise calls.Gone("the node has left the cluster")
        self._check(name)
        if name not in self._links:
            try:
                self._links[name] = self._cluster.link(member, self._closed)
            except ValueError:
                raise calls.Gone("the node has left the cluster") from None
        return self._links[name]

    def call(self, name: str, method: str, *arguments: Any) -> Any:
        """What a node replies.

        Raises:
            Gone: see `link`; also if it may no longer measure while it works.
            WorkerGone, MeasureError: see `felix.measure.cluster.remote.Link`.
        """
        reply = self._callers.submit(self.link(name).call, method, *arguments)
        while True:
            concurrent.futures.wait([reply], _LOOK_S)
            self._check(name)
            if reply.done():
                return reply.result()

    def _check(self, name: str) -> None:
        if self._refusals is None:
            return
        refusal = self._refusals.get(name, "its key was not looked at yet")
        if refusal is not None:
            raise calls.Gone(f"the node {refusal}")

    def _judged(self) -> list[pool.Member]:
        """The nodes, those that may not measure unfit; without those nobody has judged yet."""
        members, refusals = list(self._members.values()), self._refusals
        if refusals is None:
            return members
        return [
            dataclasses.replace(member, unfit=member.unfit or refusals.get(member.name))
            for member in members
            if member.unfit is not None or member.name in refusals
        ]

    def _device(self, member: pool.Member, lack: str | None) -> dict[str, Any]:
        assert member.about is not None
        if member.name not in self._described:
            self._described[member.name] = described(member.about)
        status = self._statuses.get(member.name, {})
        fault = member.unfit or self._silence(member) or status.get("broken") or lack
        return self._described[member.name] | {
            "place": member.name,
            "host": str(member.about.get("host", "")),
            "versions": dict(member.about.get("versions", {})),
            "fault": fault,
            "unconfined": None,
            "now": readings(status.get("now")),
        }

    def _silence(self, member: pool.Member) -> str | None:
        heard_s = self._heard_s.get(member.name)
        if heard_s is not None and time.monotonic() - heard_s <= SILENT_S:
            return None
        return "the node does not answer"

    def _watch(self) -> None:
        while not self._closed.wait(WATCH_S):
            try:
                self.look()
            except errors.MeasureError as error:
                _log.warning(
                    "the cluster does not say who is there: %s", error, action="cluster_silent"
                )


class _Session:
    """One engine, or the tuner, which alone says who may measure."""

    def __init__(self, relay: Relay, of_tuner: bool) -> None:
        self._relay, self._of_tuner = relay, of_tuner
        #: nodes that run something for it, by the client that it says it is
        self._running: dict[tuple[str, str], int] = {}
        self._lock = threading.Lock()

    def answer(self, verb: str, arguments: list[Any], binaries: list[bytes]) -> calls.Value:
        """See `calls.serve`."""
        match verb, arguments:
            case "members", []:
                return self._relay.members(), ()
            case "devices", []:
                return self._relay.devices(), ()
            case "nodes", [] if self._of_tuner:
                return self._relay.nodes(), ()
            case "admit", [dict(refusals)] if self._of_tuner:
                self._relay.admit(refusals)
                return None, ()
            case "answers", [name]:
                return self._relay.link(str(name)).answers(), ()
            case "call", [name, method, str(text)] if method in METHODS:
                return self._call(str(name), method, text, binaries)
        raise errors.MeasureError(f"the link has no verb {verb[:50]!r} with these arguments")

    def close(self) -> None:
        """End what still runs for it."""
        with self._lock:
            running = list(self._running)
        for name, client in running:
            with contextlib.suppress(calls.Gone, work.WorkerGone, errors.MeasureError):
                self._relay.link(name).call("interrupt", client)

    def _call(self, name: str, method: str, text: str, binaries: list[bytes]) -> calls.Value:
        try:
            if method == "prepare":
                return _measured(self._relay.call(name, method, text, binaries))
            if method != "run":
                return _measured(self._relay.call(name, method, text))
            with self._noted(name, str(messages.read(text)["client"])):
                return _measured(self._relay.call(name, method, text, binaries))
        except work.WorkerGone as gone:
            raise calls.Gone(str(gone)) from None

    @contextlib.contextmanager
    def _noted(self, name: str, client: str) -> Any:
        key = (name, client)
        with self._lock:
            self._running[key] = self._running.get(key, 0) + 1
        try:
            yield
        finally:
            with self._lock:
                self._running[key] -= 1
                if not self._running[key]:
                    del self._running[key]


def _measured(reply: Any) -> calls.Value:
    """A node's reply: a text, or a text and a binary, neither of them too large.

    Raises:
        MeasureError
    """
    text: Any = reply
    binaries: tuple[bytes, ...] = ()
    if isinstance(reply, tuple) and len(reply) == 2 and isinstance(reply[1], bytes):
        text, binaries = reply[0], (messages.binary(reply[1]),)
    if text is None:
        return None, ()
    if not isinstance(text, str) or len(text) > messages.MAX_TEXT_BYTES:
        raise errors.MeasureError("a node replied with what is no message, or too large")
    return text, binaries


_MAX_CHARACTERS = 100


def described(about: Mapping[str, Any]) -> dict[str, Any]:
    """A device as tuners describe theirs, from what its node says about it."""
    return devices.described(
        str(about["name"]),
        target.parse(about["target"]),
        Hardware(**about["hardware"]),
        int(about["memory_bytes"]),
    )


def kinds_of(member: pool.Member) -> list[str]:
    """The kinds of a node's device: the one that it states, and that of its target."""
    stated = {member.kind} if member.kind else set()
    if member.about is None:
        return sorted(stated)
    return sorted(stated | {_kind_of(str(member.about["target"]))})


@functools.lru_cache(maxsize=256)
def _kind_of(text: str) -> str:
    return messages.of(target.parse(text))


def readings(said: Any) -> dict[str, Any]:
    """What a node says of clock, power and driver, which may be anything."""
    said = said if isinstance(said, dict) else {}
    numbers = {
        name: float(said[name])
        for name in ("clock_ghz", "power_w")
        if isinstance(said.get(name), int | float)
    }
    driver = said.get("driver")
    return numbers | {"driver": str(driver)[:_MAX_CHARACTERS] if driver else None}


def main(argv: list[str]) -> None:
    """Serve pipes until the tuner's process goes away."""
    control = socket.socket(fileno=int(argv[0]))
    syscalls.prctl(syscalls.PR_SET_PDEATHSIG, signal.SIGKILL)
    logs.configure(argv[2] == "1")
    try:
        made = Relay(ray_cluster.connect(argv[1]), needs_keys=argv[3] == "1")
    except errors.MeasureError as error:
        control.send(str(error).encode()[:2000])
        return
    control.send(b"ready")
    while (packet := socket.recv_fds(control, 1, 1))[1]:
        side, (fd,), *_ = packet
        threading.Thread(
            target=made.serve,
            args=(Connection(fd),),
            daemon=True,
            kwargs={"of_tuner": side == calls.Side.TUNER.value},
        ).start()
    os._exit(0)  # Ray's own end takes seconds, and nobody waits for anything here


if __name__ == "__main__":
    main(sys.argv[1:])
