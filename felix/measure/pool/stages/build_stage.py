"""Builders, each with a thread that takes what waits to be built: candidates and references."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

from felix.measure import protocol
from felix.measure.pool import candidates

#: What a builder is given: a candidate, or a task whose reference it is to make.
Item: TypeAlias = candidates.Candidate | candidates.PoolTask
#: Takes a candidate and its measurement.
Settle = Callable[[candidates.Candidate, protocol.Measurement], None]
#: What lost so many machines has no other try.
MAX_LOSSES = 3


class Builder(Protocol):
    """Builds one program at a time."""

    def build(self, payload: str, name: str) -> candidates.Built:
        """Build a payload; `name` is that of its files.

        Raises:
            WorkerGone: the builder's machine is gone, and nothing is known about the program.
        """
        ...

    def reference(self, payload: str, name: str) -> candidates.Built:
        """Make the reference of the task whose payload this is; raises as `build`."""
        ...

    def is_back(self) -> bool:
        """Wait until a builder that was gone works again; False: it never will."""
        ...


class BuildStage:
    """Builds what comes, in order, and hands it to `built` or to `settle`.

    Args:
        builders: more may be added.
        built: takes a candidate that has its library, and a task whose reference was tried.
        settle: takes a candidate that failed.
    """

    def __init__(
        self,
        builders: Sequence[Builder],
        built: Callable[[Item], None],
        settle: Settle,
    ) -> None:
        self._built, self._settle = built, settle
        self._waiting: queue.SimpleQueue[Item | None] = queue.SimpleQueue()
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

    def put(self, item: Item) -> None:
        """Queue a candidate, or a task whose reference is to be made."""
        self._waiting.put(item)

    @property
    def is_empty(self) -> bool:
        """Whether nothing waits."""
        return self._waiting.empty()

    def drain(self) -> list[Item]:
        """Everything that waits; the queue is empty then."""
        drained: list[Item] = []
        while True:
            try:
                item = self._waiting.get_nowait()
            except queue.Empty:
                return drained
            if item is not None:
                drained.append(item)

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
        while (item := self._waiting.get()) is not None:
            try:
                if isinstance(item, candidates.PoolTask):
                    item.reference.settle(builder.reference(item.payload, item.name))
                    self._built(item)
                elif _is_wanted(item):
                    self._build(builder, item)
            except candidates.WorkerGone as gone:
                self._lost[builder] = str(gone)
                self._again(item, str(gone))
                if not builder.is_back():
                    return
                del self._lost[builder]

    def _build(self, builder: Builder, candidate: candidates.Candidate) -> None:
        made = builder.build(candidate.payload, candidate.name)
        candidate.build_s, candidate.binary = made.build_s, made.binary
        if made.error is None:
            self._built(candidate)
        else:
            self._settle(candidate, candidate.failed(made.error, made.message))

    def _again(self, item: Item, why: str) -> None:
        """Queue again what lost its builder; it fails if that happens too often."""
        item.losses += 1
        message, error = f"building: {why}", protocol.ErrorClass.INFRASTRUCTURE
        if item.losses < MAX_LOSSES:
            self._waiting.put(item)
        elif isinstance(item, candidates.PoolTask):
            item.reference.tries_left = 0
            item.reference.settle(candidates.Built(error=error, message=message))
            self._built(item)
        else:
            self._settle(item, item.failed(error, message))


def _is_wanted(candidate: candidates.Candidate) -> bool:
    """Whether nobody cancelled it."""
    return candidate.future.running() or candidate.future.set_running_or_notify_cancel()
