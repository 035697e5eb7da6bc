"""Calls over one pipe, many at a time: of an engine or a tuner to the process of a cluster's link.

    request  [number, verb, argument, ...] as JSON, and binaries
    reply    [number, outcome, value] as JSON, and binaries

Neither side unpickles what the other one sends.
"""

from __future__ import annotations

import concurrent.futures
import enum
import itertools
import json
import threading
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any

from felix import errors
from felix.measure.cluster import messages

#: Requests that are served at a time.
MAX_CALLS = 512
#: How often a call looks whether it is still wanted, in seconds.
_LOOK_S = 0.2
#: Binaries of one message.
_MAX_BINARIES = 64

#: A value and binaries.
Value = tuple[Any, Sequence[bytes]]


class CallState(enum.StrEnum):
    """What became of a call."""

    VALUE = "value"
    #: the node is out of reach
    GONE = "gone"
    #: it said why not
    ERROR = "error"


class Side(enum.Enum):
    """Whose pipe it is that the process of the link gets, as one byte beside it."""

    ENGINE = b"e"
    TUNER = b"t"


class Gone(Exception):
    """Nobody knows what became of a call: the node or the other side of the pipe is gone."""


class Calls:
    """The side that asks; its methods may be called by several threads."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._numbers = itertools.count()
        self._sending, self._lock = threading.Lock(), threading.Lock()
        self._waiting: dict[int, concurrent.futures.Future[Value]] = {}
        #: set once the other side is gone
        self.ended = threading.Event()
        threading.Thread(target=self._receive, name="calls", daemon=True).start()

    def ask(
        self,
        verb: str,
        *arguments: Any,
        binaries: Sequence[bytes] = (),
        unwanted: threading.Event | None = None,
    ) -> Value:
        """Send a request and wait for the reply.

        Args:
            verb: what to do.
            arguments: plain values.
            binaries: go along.
            unwanted: set once nobody waits for the reply any more.

        Raises:
            Gone
            MeasureError: the node said why not.
        """
        future: concurrent.futures.Future[Value] = concurrent.futures.Future()
        with self._lock:
            number = next(self._numbers)
            self._waiting[number] = future
        if self.ended.is_set():
            raise Gone("the link to the cluster is gone")
        try:
            _send(self._connection, self._sending, [number, verb, *arguments], binaries)
        except OSError:
            raise Gone("the link to the cluster is gone") from None
        while True:
            try:
                return future.result(_LOOK_S)
            except concurrent.futures.TimeoutError:
                if unwanted is not None and unwanted.is_set():
                    raise Gone("the pool is closed") from None

    def close(self) -> None:
        """Say that nothing more comes."""
        self._connection.close()

    def _receive(self) -> None:
        try:
            while True:
                (number, outcome, value), binaries = _received(self._connection)
                with self._lock:
                    future = self._waiting.pop(number)
                _settle(future, outcome, value, binaries)
        except (EOFError, OSError, ValueError, TypeError, KeyError):
            pass  # it ended, or what it sends makes no sense
        self.ended.set()
        with self._lock:
            left = list(self._waiting.values())
            self._waiting.clear()
        for future in left:
            future.set_exception(Gone("the link to the cluster is gone"))


def serve(connection: Connection, answer: Callable[[str, list[Any], list[bytes]], Value]) -> None:
    """Answer requests, each in a thread, until the other side is gone.

    Args:
        connection: to the other side.
        answer: takes a verb, its arguments and binaries; raises what `Calls.ask` says.
    """
    sending = threading.Lock()

    def reply(number: Any, verb: Any, arguments: list[Any], binaries: list[bytes]) -> None:
        made: Sequence[bytes] = ()
        try:
            value, made = answer(str(verb), arguments, binaries)
            outcome = CallState.VALUE
        except Gone as gone:
            outcome, value = CallState.GONE, str(gone)
        except (errors.MeasureError, TypeError, ValueError, LookupError) as error:
            outcome, value = CallState.ERROR, str(error)
        try:
            _send(connection, sending, [number, outcome, value], made)
        except OSError:
            pass  # nobody waits for it

    threads = concurrent.futures.ThreadPoolExecutor(MAX_CALLS, "call")
    try:
        while True:
            (number, verb, *arguments), binaries = _received(connection)
            threads.submit(reply, number, verb, arguments, binaries)
    except (EOFError, OSError, ValueError, TypeError):
        threads.shutdown(wait=False, cancel_futures=True)


def _settle(
    future: concurrent.futures.Future[Value], outcome: str, value: Any, binaries: list[bytes]
) -> None:
    match CallState(outcome):
        case CallState.VALUE:
            future.set_result((value, binaries))
        case CallState.GONE:
            future.set_exception(Gone(str(value)))
        case CallState.ERROR:
            future.set_exception(errors.MeasureError(str(value)))


def _send(
    connection: Connection, lock: threading.Lock, fields: list[Any], binaries: Sequence[bytes]
) -> None:
    text = json.dumps([len(binaries), *fields]).encode()
    with lock:
        connection.send_bytes(text)
        for content in binaries:
            connection.send_bytes(content)


def _received(connection: Connection) -> tuple[list[Any], list[bytes]]:
    n_binaries, *fields = json.loads(connection.recv_bytes(2 * messages.MAX_TEXT_BYTES))
    if not 0 <= n_binaries <= _MAX_BINARIES:
        raise ValueError(n_binaries)
    return fields, [connection.recv_bytes(messages.MAX_BINARY_BYTES) for _ in range(n_binaries)]
