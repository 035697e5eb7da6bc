"""The process of a cluster's link as its tuner sees it, and which nodes may measure.

It loads no TVM. Nodes are judged by what the database says, which the tuner alone has.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any

import sqlalchemy as sa

from felix import errors
from felix.processes import child
from server import logs
from server.database import database
from server.store import keys, tuners
from server.tuner.cluster import calls

_log = logs.of(__name__)

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
        of_ray = {name: value for name, value in os.environ.items() if name.startswith("RAY_")}
        with theirs:
            process = child.start(  # in another session: Ray would end it by the tuner's signal
                "server.tuner.cluster.relay",
                *(str(theirs.fileno()), *self._arguments),
                environment=child.for_child(os.environ, of_ray),
                pass_fds=[theirs.fileno()],
                log=None,
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
            _log.warning("no link to the cluster: %s", error, action="cluster_gone")
            self._closed.wait(AGAIN_S)


class Admission:
    """Judges nodes by the keys that they state; used by one thread.

    While the database cannot be asked, what it said last holds, and nodes that came since wait: a
    tuner that cannot reach its database loses its job anyhow.
    """

    def __init__(self, db: database.Database) -> None:
        self._db = db
        self._refusals: dict[str, str | None] = {}
        self._noted_s = float("-inf")

    def refusals(self, nodes: Sequence[Mapping[str, Any]]) -> dict[str, str | None]:
        """Why each of some nodes may not measure, by name; None if it may."""
        stated = [tuners.Node(**fields) for fields in nodes]
        try:
            with self._db.read() as tx:
                judged = tuners.judge(tx, stated)
        except sa.exc.SQLAlchemyError as error:
            _log.warning("keys of nodes cannot be looked at: %s", error, action="admission_failed")
            return self._refusals
        refusals = {each.name: each.refusal for each in judged}
        for name, refusal in refusals.items():
            if refusal is not None and refusal != self._refusals.get(name):
                _log.warning(
                    "node %s may not measure: it %s", name, refusal, action="node_refused"
                )
        self._refusals = refusals
        self._note_use(judged)
        return refusals

    def _note_use(self, judged: Sequence[tuners.Judged]) -> None:
        """Record now and then that keys are used."""
        used = {each.key_id for each in judged if each.refusal is None and each.key_id is not None}
        if not used or time.monotonic() - self._noted_s < keys.USE_NOTED_S:
            return
        with contextlib.suppress(sa.exc.SQLAlchemyError), self._db.write() as tx:
            for key_id in used:
                keys.note_use(tx, key_id)
            self._noted_s = time.monotonic()
