"""Builders: worker processes, each with a thread that takes what waits to be built."""

from __future__ import annotations

import os
import pathlib
import queue
import threading
from collections.abc import Callable, Sequence
from typing import Any

from felix import errors
from felix.measure import protocol
from felix.measure.pool import candidates, inbox, replies, rights
from felix.measure.pool import worker as pool_worker
from felix.measure.pool.stages import run_stage

_ErrorClass = protocol.ErrorClass

#: Takes a candidate that failed, and its measurement.
Settle = Callable[[candidates.Candidate, protocol.Measurement], None]


class BuildStage:
    """Builds candidates in the order they come, and hands them to `built` or to `settle`.

    Args:
        workers: builders; the pool's, which ends them.
        folders: of the pool.
        options: of the pool.
        kind: of the devices, "cpu" or "cuda".
        built: takes a candidate that has its library.
        settle: takes one that failed.
    """

    def __init__(
        self,
        workers: Sequence[pool_worker.Worker],
        folders: rights.Folders,
        options: candidates.LocalOptions,
        kind: str,
        built: Callable[[candidates.Candidate], None],
        settle: Settle,
    ) -> None:
        self.workers = workers
        self._folders, self._options, self._kind = folders, options, kind
        self._built, self._settle = built, settle
        self._waiting: queue.SimpleQueue[candidates.Candidate | None] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=self._loop, args=(index,), daemon=True)
            for index in range(len(workers))
        ]

    def start(self) -> None:
        """Begin to take candidates."""
        for thread in self._threads:
            thread.start()

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

    def _loop(self, index: int) -> None:
        worker, folder = self.workers[index], self._folders.of_builder(index)
        while (candidate := self._waiting.get()) is not None:
            if candidate.future.set_running_or_notify_cancel():
                self._build(worker, folder, candidate)

    def _build(
        self, worker: pool_worker.Worker, folder: pathlib.Path, candidate: candidates.Candidate
    ) -> None:
        try:
            reply = self._reply(worker, self._request(candidate, str(folder / candidate.name)))
        except (pool_worker.WorkerLost, errors.MeasureError) as error:
            candidate.build_s = error.cpu_s if isinstance(error, pool_worker.WorkerLost) else 0.0
            kind = run_stage.classify(error, _ErrorClass.BUILD)
            worker.clear()
            self._settle(candidate, candidate.failed(kind, f"building: {error}"))
            return
        candidate.build_s = reply["seconds"]
        if "error" in reply:
            self._settle(
                candidate, candidate.failed(_ErrorClass(reply["error"]), reply["message"])
            )
            return
        candidate.binary = reply["library"]
        self._built(candidate)

    def _request(self, candidate: candidates.Candidate, stem: str) -> dict[str, Any]:
        request = {"verb": "build", "payload": candidate.payload, "stem": stem}
        if self._kind != "cuda":
            return request | {"link": self._options.link.value}
        return request | {
            "verb": "build_cuda",
            "explicit": self._options.explicit_unroll,
            "scalars": self._options.scalar_registers,
            "options": self._options.nvrtc_options,
            "max_source_bytes": self._options.max_source_bytes,
        }

    def _reply(self, worker: pool_worker.Worker, request: dict[str, Any]) -> dict[str, Any]:
        """The reply of a builder; its library is where no worker can write."""
        reply = worker.call(request, self._options.build_timeout_s, busy=True)
        try:
            reply = replies.checked(request, reply)
        except inbox.Nonsense as error:
            raise worker.misbehaved(f"it replied with {error}") from None
        if "error" in reply:
            return reply
        library = self._folders.libraries / pathlib.Path(reply["library"]).name
        try:
            os.replace(reply["library"], library)
        except OSError as error:  # the pool is closed
            raise errors.MeasureError(f"the library is gone: {error.strerror}") from error
        return reply | {"library": str(library)}
