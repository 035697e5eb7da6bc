"""Builders, each with a thread that takes what waits to be built."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from typing import Protocol

from felix.measure import protocol
from felix.measure.pool import candidates

#: Takes a candidate and its measurement.
Settle = Callable[[candidates.Candidate, protocol.Measurement], None]
#: A candidate that lost so many machines has no other try.
MAX_LOSSES = 3


class Builder(Protocol):
    """Builds one program at a time."""

    def build(self, payload: str, name: str) -> candidates.Built:
        """Build a payload; `name` is that of its files.

        Raises:
            WorkerGone: the builder's machine is gone, and nothing is known about the program.
        """
        ...

    def is_back(self) -> bool:
        """Wait until a builder that was gone works again; False: it never will."""
        ...


class BuildStage:
    """Builds candidates in the order they come, and hands them to `built` or to `settle`.

    Args:
        builders: more may be added.
        built: takes a candidate that has its library.
        settle: takes one that failed.
    """

    def __init__(
        self,
        builders: Sequence[Builder],
        built: Callable[[candidates.Candidate], None],
        settle: Settle,
    ) -> None:
        self._built, self._settle = built, settle
        self._waiting: queue.SimpleQueue[candidates.Candidate | None] = queue.SimpleQueue()
        self._threads = [self._thread(builder) for builder in builders]
        self._lost: dict[Builder, str] = {}

    def start(self) -> None:
        """Begin to take candidates."""
        for thread in self._threads:
            thread.start()

    def add(self, builder: Builder) -> None:
        """Let one more builder take candidates."""
        thread = self._thread(builder)
        self._threads.append(thread)
        thread.start()

    @property
    def n_builders(self) -> int:
        """How many builders there are or were."""
        return len(self._threads)

    @property
    def lost(self) -> str | None:
        """Why nobody can build anything now; None if somebody can."""
        reasons = list(self._lost.values())
        return reasons[0] if reasons and len(reasons) == self.n_builders else None

    def put(self, candidate: candidates.Candidate) -> None:
        """Queue a candidate."""
        self._waiting.put(candidate)

    @property
    def is_empty(self) -> bool:
        """Whether nothing waits."""
        return self._waiting.empty()

    def drain(self) -> list[candidates.Candidate]:
        """Everything that waits; the queue is empty then."""
        drained: list[candidates.Candidate] = []
        while True:
            try:
                candidate = self._waiting.get_nowait()
            except queue.Empty:
                return drained
            if candidate is not None:
                drained.append(candidate)

    def close(self) -> None:
        """Let each thread end after what it builds."""
        for _ in self._threads:
            self._waiting.put(None)

    def join(self) -> None:
        """Wait for the threads."""
        for thread in self._threads:
            thread.join()

    def _thread(self, builder: Builder) -> threading.Thread:
        return threading.Thread(target=self._loop, args=(builder,), daemon=True)

    def _loop(self, builder: Builder) -> None:
        while (candidate := self._waiting.get()) is not None:
            if not (candidate.future.running() or candidate.future.set_running_or_notify_cancel()):
                continue
            try:
                made = builder.build(candidate.payload, candidate.name)
            except candidates.WorkerGone as gone:
                self._lost[builder] = str(gone)
                self._again(candidate, str(gone))
                if not builder.is_back():
                    return
                del self._lost[builder]
                continue
            candidate.build_s, candidate.binary = made.build_s, made.binary
            if made.error is None:
                self._built(candidate)
            else:
                self._settle(candidate, candidate.failed(made.error, made.message))

    def _again(self, candidate: candidates.Candidate, why: str) -> None:
        """Queue a candidate again whose builder was lost; it fails if that happens too often."""
        candidate.losses += 1
        if candidate.losses < MAX_LOSSES:
            self._waiting.put(candidate)
        else:
            failed = candidate.failed(protocol.ErrorClass.INFRASTRUCTURE, f"building: {why}")
            self._settle(candidate, failed)
