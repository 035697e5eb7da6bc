"""Builders, each with a thread that takes what waits to be built: candidates and references."""

from __future__ import annotations

import os
import pathlib
import queue
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol, TypeAlias

from felix import errors
from felix.measure import dispatch, rights, running, work
from felix.measure import worker as pool_worker
from felix.runner import protocol

#: What a builder is given: a candidate, or a task whose reference it is to make.
Item: TypeAlias = work.QueuedProgram | work.PoolTask
#: Takes a candidate and its measurement.
Settle = Callable[[work.QueuedProgram, protocol.Measurement], None]
#: What lost so many machines has no other try.
MAX_LOSSES = 3


class Builder(Protocol):
    """Builds one program at a time."""

    def build(self, payload: str, name: str) -> work.Built:
        """Build a payload; `name` is that of its files.

        Raises:
            WorkerGone: the builder's machine is gone, and nothing is known about the program.
        """
        ...

    def reference(self, payload: str, name: str) -> work.Built:
        """Make the reference of the task whose payload this is; raises as `build`."""
        ...

    def await_return(self) -> bool:
        """Wait until a builder that was gone works again; False: it never will."""
        ...


class Builders:
    """Builds what comes, in order, and hands it to `built` or to `settle`.

    Args:
        builders: more may be added.
        built: takes a candidate that has its library, and a task whose reference was tried.
        settle: takes a candidate that failed.
    """

    def __init__(
        self, builders: Sequence[Builder], built: Callable[[Item], None], settle: Settle
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
                if isinstance(item, work.PoolTask):
                    item.reference.settle(builder.reference(item.payload, item.name))
                    self._built(item)
                elif item.claim():
                    self._build(builder, item)
            except work.WorkerGone as gone:
                self._lost[builder] = str(gone)
                self._again(item, str(gone))
                if not builder.await_return():
                    return
                del self._lost[builder]

    def _build(self, builder: Builder, candidate: work.QueuedProgram) -> None:
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
        elif isinstance(item, work.PoolTask):
            item.reference.tries_left = 0
            item.reference.settle(work.Built(error=error, message=message))
            self._built(item)
        else:
            self._settle(item, item.failed(error, message))


# A builder that is a worker process of this machine.

_ErrorClass = protocol.ErrorClass


class LocalBuilder:
    """A `building.Builder`: one worker, with a folder of its own.

    Args:
        worker: its process.
        folder: that the worker writes to.
        folders: of the pool; libraries end there, where no worker can write.
        options: of the pool.
        kind: of the devices, "cpu" or "cuda".
    """

    def __init__(
        self,
        worker: pool_worker.Worker,
        folder: pathlib.Path,
        folders: rights.Folders,
        options: work.LocalOptions,
        kind: str,
    ) -> None:
        self.worker = worker
        self._folder, self._folders = folder, folders
        self._options, self._kind = options, kind

    def build(self, payload: str, name: str, kind: str | None = None) -> work.Built:
        """Build a payload, for devices of another kind if one is given; what costs the worker its
        life is an error of the program."""
        request: dict[str, Any] = {
            "verb": "build",
            "payload": payload,
            "stem": str(self._folder / name),
        }
        if (kind or self._kind) == "cuda":
            request |= {"verb": "build_cuda", "max_source_bytes": self._options.max_source_bytes}
        return self._made(request, self._options.build_timeout_s, busy=True)

    def reference(self, payload: str, name: str) -> work.Built:
        """Make the reference of the task whose payload this is, for devices of any kind."""
        options = self._options
        request = {
            "verb": "reference",
            "payload": payload,
            "stem": str(self._folder / name),
            "seed": options.seed,
        }
        return self._made(request, options.reference_timeout_s, busy=False)

    def await_return(self) -> bool:
        """A worker that died is replaced at the next build."""
        return True

    def _made(self, request: dict[str, Any], timeout_s: float, busy: bool) -> work.Built:
        try:
            reply = self._reply(request, timeout_s, busy)
        except (pool_worker.WorkerLost, errors.MeasureError) as error:
            build_s = error.cpu_s if isinstance(error, pool_worker.WorkerLost) else 0.0
            kind = running.classify(error, _ErrorClass.BUILD)
            self.worker.clear()
            return work.Built(build_s=build_s, error=kind, message=f"building: {error}")
        if "error" in reply:
            return work.Built(
                build_s=reply["seconds"],
                error=_ErrorClass(reply["error"]),
                message=reply["message"],
            )
        return work.Built(reply["library"], reply.get("description", ""), build_s=reply["seconds"])

    def _reply(self, request: dict[str, Any], timeout_s: float, busy: bool) -> dict[str, Any]:
        """The reply of the worker; its library is where no worker can write."""
        reply = self.worker.call(request, timeout_s, busy=busy)
        if "error" in reply:
            return reply
        library = self._folders.libraries / pathlib.Path(reply["library"]).name
        try:
            os.replace(reply["library"], library)
        except OSError as error:  # the pool is closed
            raise errors.MeasureError(f"the library is gone: {error.strerror}") from error
        return reply | {"library": str(library)}


# References between builders and devices: each is built once, and its candidates wait for it.


class References:
    """Hands on what builders have made; used by all threads of a pool.

    Args:
        build: queues a task whose reference is to be built.
        hand_on: takes a task that has its reference or will have none, then its candidates.
    """

    def __init__(
        self, build: Callable[[work.PoolTask], None], hand_on: Callable[[dispatch.Item], None]
    ) -> None:
        self._build, self._hand_on = build, hand_on
        self._lock = threading.Lock()
        #: tasks that builders have or will get, and tasks that were handed on
        self._asked: set[work.PoolTask] = set()
        self._ready: set[work.PoolTask] = set()
        #: candidates that were built before the reference of their task
        self._early: dict[work.PoolTask, list[work.QueuedProgram]] = {}

    def ask(self, task: work.PoolTask) -> None:
        """Have a reference built, unless a builder has it."""
        with self._lock:
            self._ask(task)

    def built(self, item: Item) -> None:
        """A candidate has its library, or a reference was tried."""
        with self._lock:
            if isinstance(item, work.PoolTask):
                self._tried(item)
            elif item.task in self._ready:
                self._hand_on(item)
            else:
                self._early.setdefault(item.task, []).append(item)
                self._ask(item.task)

    def drain(self, waited: Iterable[work.PoolTask]) -> list[work.QueuedProgram]:
        """All candidates that wait here; tasks that `waited` for a builder are not built."""
        with self._lock:
            self._asked.difference_update(waited)
            drained = [candidate for early in self._early.values() for candidate in early]
            self._early.clear()
            return drained

    def _ask(self, task: work.PoolTask) -> None:
        if task not in self._asked:
            self._asked.add(task)
            self._build(task)

    def _tried(self, task: work.PoolTask) -> None:
        self._asked.discard(task)
        if task.reference.is_settled:
            self._ready.add(task)
            self._hand_on(task)
            for candidate in self._early.pop(task, ()):
                self._hand_on(candidate)
        elif task in self._early:
            self._ask(task)
