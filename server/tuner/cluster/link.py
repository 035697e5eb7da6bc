"""The process of a cluster's link as its tuner and its engines see it."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

from felix import errors
from felix.measure.cluster import pool, remote
from felix.measure.pool import candidates
from felix.processes import environment
from server.tuner.cluster import calls

_log = logging.getLogger(__name__)

#: How long it may take to join the cluster, in seconds.
START_S = 120.0
#: Between two questions who is there, and before it is started again, in seconds.
WATCH_S, AGAIN_S = 1.0, 5.0
_MAX_PACKET_BYTES = 4096

#: By name of a node, of nodes as `server.store.tuners.Node`.
Refusals = Callable[[Sequence[Mapping[str, Any]]], Mapping[str, str | None]]


class RelayProcess:
    """The link to a cluster; a thread keeps it, and asks who is there.

    Args:
        address: of the cluster's head, "HOST:PORT".
        log_json: log lines as JSON.
        refusals: says why nodes may not measure, see `admission.Admission.refusals`; it is asked
            every second. None: all may.

    Raises:
        MeasureError: there is no such cluster, or it asks for no token.
    """

    def __init__(
        self, address: str, log_json: bool = False, refusals: Refusals | None = None
    ) -> None:
        self._arguments = [address, *("1" if each else "0" for each in (log_json, refusals))]
        self._refusals = refusals
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._devices: list[dict[str, Any]] = []
        #: how often the process was started; engines of an earlier one have lost their link
        self.generation = 0
        self._calls = self._start()
        self._look()
        self._thread = threading.Thread(target=self._watch, name="cluster", daemon=True)
        self._thread.start()

    @property
    def pid(self) -> int | None:
        """Of the process."""
        return None if self._process is None else self._process.pid

    def devices(self) -> list[dict[str, Any]]:
        """The devices of the cluster, as they were a second ago."""
        return self._devices

    def connect(self, side: calls.Side = calls.Side.ENGINE) -> socket.socket:
        """A pipe to the process; its end is closed at once while there is no such process."""
        ours, theirs = socket.socketpair()
        with self._lock, theirs:
            with contextlib.suppress(OSError):
                if self._control is not None:
                    socket.send_fds(self._control, [side.value], [theirs.fileno()])
        return ours

    def close(self) -> None:
        """End the process."""
        self._closed.set()
        self._thread.join()
        self._end()

    def _start(self) -> calls.Calls:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, "-m", "server.tuner.cluster.relay_main", str(theirs.fileno())]
        of_ray = {name: value for name, value in os.environ.items() if name.startswith("RAY_")}
        with theirs:
            process = subprocess.Popen(
                [*command, *self._arguments],
                env=environment.for_child(os.environ, of_ray),
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # Ray would end it by a signal that is the tuner's
            )
        ours.settimeout(START_S)
        try:
            said = ours.recv(_MAX_PACKET_BYTES).decode(errors="replace")
        except OSError as error:
            said = f"the link to the cluster does not begin: {error}"
        with self._lock:
            self._process, self._control = process, ours
            self.generation += 1
        if said != "ready":
            self._end()
            raise errors.MeasureError(said or "the link to the cluster ended as it began")
        ours.settimeout(None)
        return calls.Calls(Connection(self.connect(calls.Side.TUNER).detach()))

    def _end(self) -> None:
        with self._lock:
            if self._control is not None:
                self._control.close()
            if self._process is not None:
                self._process.kill()
                self._process.wait()
            self._process = self._control = None

    def _look(self) -> None:
        if self._refusals is not None:
            nodes, _ = self._calls.ask("nodes", unwanted=self._closed)
            self._calls.ask("admit", self._refusals(nodes), unwanted=self._closed)
        listed, _ = self._calls.ask("devices", unwanted=self._closed)
        self._devices = listed

    def _watch(self) -> None:
        while not self._closed.wait(WATCH_S):
            try:
                self._look()
            except (calls.Gone, errors.MeasureError):
                self._devices = []
                self._begin_again()

    def _begin_again(self) -> None:
        if self._closed.is_set() or not self._calls.ended.is_set():
            return
        self._end()
        try:
            self._calls = self._start()
        except errors.MeasureError as error:
            _log.warning("no link to the cluster: %s", error, extra={"action": "cluster_gone"})
            self._closed.wait(AGAIN_S)


#: Between two questions whether a node is back, in seconds.
_AGAIN_S = 1.0


class RelayedCluster:
    """A `felix.measure.cluster.pool.Cluster`."""

    def __init__(self, link: calls.Calls) -> None:
        self._calls = link

    @property
    def ended(self) -> bool:
        """Whether the link is gone, for good."""
        return self._calls.ended.is_set()

    def devices(self) -> list[dict[str, Any]]:
        """The devices that are there, as `server.parsing.devices.described` says them."""
        listed, _ = self._ask("devices")
        return list(listed)

    def members(self) -> Sequence[pool.Member]:
        """All nodes that answer."""
        listed, _ = self._ask("members")
        return [pool.Member.of(fields) for fields in listed]

    def link(self, member: pool.Member, closed: threading.Event) -> RelayedLink:
        """The way to a node."""
        return RelayedLink(self._calls, member.name, closed)

    def _ask(self, verb: str) -> calls.Value:
        try:
            return self._calls.ask(verb)
        except calls.Gone as gone:
            raise errors.MeasureError(str(gone)) from None


class RelayedLink:
    """A `felix.measure.cluster.remote.Link`."""

    def __init__(self, link: calls.Calls, name: str, closed: threading.Event) -> None:
        self._calls, self._name, self._closed = link, name, closed

    def call(self, method: str, *args: Any) -> Any:
        """Call a method of the node; a list of bytes goes along as binaries."""
        binaries = [content for each in args if isinstance(each, list) for content in each]
        texts = [each for each in args if isinstance(each, str)]
        try:
            value, made = self._calls.ask(
                "call", self._name, method, *texts, binaries=binaries, unwanted=self._closed
            )
        except calls.Gone as gone:
            raise candidates.WorkerGone(str(gone)) from None
        return (value, made[0]) if made else value

    def is_back(self) -> bool:
        """Wait until the node answers; False: it never will, or the pool is closed."""
        while not self._closed.is_set():
            try:
                answers, _ = self._calls.ask("answers", self._name, unwanted=self._closed)
            except (calls.Gone, errors.MeasureError):
                return False
            if answers is not False:
                return bool(answers)
            self._closed.wait(_AGAIN_S)
        return False


if TYPE_CHECKING:

    def _conforms(cluster: RelayedCluster, link: RelayedLink) -> tuple[pool.Cluster, remote.Link]:
        return cluster, link
