"""What runs on a machine of a cluster: builders, or a run worker of one device, or both.

Programs are built and run by the worker processes of a local pool, with its limits and
confinement, so a candidate can hurt only itself. Nothing here knows how it is reached.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import itertools
import pathlib
import platform
import queue
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import tvm

from felix import errors, target, version
from felix.builder import payload as payloads
from felix.measure import building, inbox, local, local_workers, locks, readings, work
from felix.measure.cluster import messages
from felix.processes import child
from felix.target import memory

#: Tasks whose references a node keeps.
MAX_TASKS = 100
#: How often what a client interrupts is ended until its request is over.
_INTERRUPT_S = 0.05


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a node does.

    Attributes:
        builders: programs that it builds at a time; 0: none.
        target: whose programs it runs, as text ("llvm", "cuda"); empty: it runs none.
        device: the number of its GPU among those that its process sees.
        key: digest of the key of a service that it states (`worker_key`); empty: none.
    """

    builders: int = 0
    target: str = ""
    device: int = 0
    key: str = ""


@dataclasses.dataclass(slots=True)
class _Request:
    """A request to run candidates that is being served."""

    client: str
    ended: threading.Event = dataclasses.field(default_factory=threading.Event)


class Node:
    """One worker of a cluster; its methods may be called by several threads.

    Args:
        settings: what it does.
        options: limits of its workers; None: those of a local pool.

    Raises:
        MeasureError: the machine has no such device, or lacks something for it.
    """

    def __init__(self, settings: Settings, options: work.LocalOptions | None = None) -> None:
        self._settings = settings
        options = options or work.LocalOptions()
        options = dataclasses.replace(options, builders=max(1, settings.builders))
        self._lock = threading.Lock()
        self._names = itertools.count()
        self._states: collections.OrderedDict[str, work.TaskState] = collections.OrderedDict()
        self._n_tasks = 0
        self._target = target.parse(settings.target) if settings.target else None
        device = work.Device("cpu", platform.node(), 0)
        if self._target is not None:
            (device,) = local.chosen(self._target, (settings.device,))
        self._device = device
        is_for_gpus = device.kind == "cuda" and not settings.builders
        self._processes = local_workers.LocalWorkers(options, is_for_gpus)
        builders = self._processes.builders(device) if settings.builders else []
        self._free: queue.SimpleQueue[Any] = queue.SimpleQueue()
        for builder in builders:
            self._free.put(builder)
        self._runs = None
        self._request: _Request | None = None
        if self._target is not None:
            threads = local.num_cores(self._target) if device.kind == "cpu" else 1
            self._runs = self._processes.runner(
                "runner", 0, device, threads, locks.ReadWriteLock(), builders
            )
        self._processes.launch()

    def facts(self) -> str:
        """What the node is and does: a message with its versions, builders and device."""
        return messages.write(
            felix=version.__version__,
            tvm=tvm.__version__,
            payload=payloads.VERSION,
            host=platform.node(),
            builders=self._settings.builders,
            kind=messages.slug(self._device.name) if self._runs is not None else "",
            device=dataclasses.asdict(self._device) if self._runs is not None else None,
            about=self._about(),
            key=self._settings.key,
        )

    def status(self) -> str:
        """How the node is now: why its device cannot be used, its clock, power and driver."""
        return messages.write(
            broken=None if self._runs is None else self._runs.broken,
            now=dataclasses.asdict(readings.of(self._device.kind, self._settings.device)),
        )

    def build(self, text: str) -> tuple[str, bytes]:
        """Build a program for a device of kind `for`; a message and the binary."""
        request = messages.read(text)
        with self._builder() as (builder, name):
            return _reply(builder.build(request["payload"], name, request["for"]))

    def reference(self, text: str) -> tuple[str, bytes]:
        """Make a task's reference; a message with its description, and the binary."""
        request = messages.read(text)
        with self._builder() as (builder, name):
            made = builder.reference(request["payload"], name)
        return _reply(made, description=made.description)

    def open(self, arch: str) -> str:
        """Open the GPU; why it is not confined, and why it cannot be used."""
        with self._lock:
            runs = self._runner()
            runs.open(arch)
            return messages.write(unconfined=runs.unconfined, broken=runs.broken)

    def prepare(self, text: str, binaries: list[bytes]) -> str:
        """Run a task's reference; why that failed, and why the device cannot be used."""
        fields = messages.read(text)
        with self._lock:
            runs, state = self._runner(), self._state(fields, *binaries)
            if state.failure is not None:
                runs.prepare(state)
            return messages.write(failure=state.failure, broken=runs.broken)

    def run(self, text: str, binaries: list[bytes]) -> str:
        """Check and time candidates, one after another."""
        fields = messages.read(text)
        with self._lock:
            self._request = _Request(fields["client"])
            try:
                results = [
                    self._run(candidate, content)
                    for candidate, content in zip(fields["candidates"], binaries, strict=True)
                ]
            finally:
                self._request.ended.set()
                self._request = None
        return messages.write(results=results)

    def interrupt(self, client: str) -> None:
        """End what runs for a client: the candidates of its request fail."""
        request = self._request
        if self._runs is None or request is None or request.client != client:
            return
        while not request.ended.is_set():  # the next candidate may have been about to begin
            self._runs.worker.interrupt()
            request.ended.wait(_INTERRUPT_S)

    def close(self) -> None:
        """End all processes."""
        self._processes.close()

    def _about(self) -> dict[str, Any] | None:
        """What a tuner tells others of the device: its target, limits and rates, and memory."""
        if self._target is None:
            return None
        hardware = target.hardware(self._target)
        return {
            "name": hardware.name,
            "host": platform.node(),
            "versions": {"felix": version.__version__, "tvm": tvm.__version__},
            "target": target.describe(self._target),
            "hardware": dataclasses.asdict(hardware),
            "memory_bytes": memory.memory_bytes(self._target),
        }

    @contextlib.contextmanager
    def _builder(self) -> Iterator[tuple[building.LocalBuilder, str]]:
        """A builder that is free, and a name for what it makes."""
        builder = self._free.get()
        try:
            yield builder, f"built-{next(self._names)}"
        finally:
            self._free.put(builder)

    def _runner(self) -> Any:
        if self._runs is None:
            raise errors.MeasureError("this node runs no programs, it only builds them")
        return self._runs

    def _state(self, fields: dict[str, Any], content: bytes) -> work.TaskState:
        """The task of a description and the binary of its reference."""
        description = messages.description(fields)
        key = messages.task_name(description, content)
        if key not in self._states:
            folder = self._processes.folders.of_task(0, self._n_tasks)
            name = f"reference-{self._n_tasks}"
            self._n_tasks += 1
            binary = self._kept(name, fields["suffix"], content)
            self._states[key] = work.TaskState(
                self._device,
                str(folder),
                work.Reference(description, str(binary)),
                work.NOT_COMPUTED,
            )
            while len(self._states) > MAX_TASKS:
                _, old = self._states.popitem(last=False)
                for path in (old.folder, old.reference.binary):
                    child.remove_tree(pathlib.Path(path))
        self._states.move_to_end(key)
        return self._states[key]

    def _kept(
        self,
        name: str,
        suffix: str,
        content: bytes,
        suffixes: Sequence[str] = inbox.REFERENCE_SUFFIXES,
    ) -> pathlib.Path:
        """A file with a binary that came, where run workers read."""
        if suffix not in suffixes:
            raise errors.MeasureError(f"no binary has the suffix {suffix!r}")
        path = self._processes.folders.libraries / f"{name}{suffix}"
        path.write_bytes(messages.binary(content))
        return path

    def _run(self, fields: dict[str, Any], content: bytes) -> dict[str, Any] | None:
        state = self._states.get(fields["task"])
        if state is None:
            return None
        name = f"candidate-{next(self._names)}"
        path = self._kept(name, fields["suffix"], content, inbox.SUFFIXES)
        task = work.PoolTask(0, [state])
        candidate = work.QueuedProgram(
            task, "", name, thorough=fields["thorough"], binary=str(path)
        )
        try:
            return messages.of_measurement(self._runner().run(candidate, state))
        finally:
            path.unlink(missing_ok=True)


def _reply(made: work.Built, **fields: Any) -> tuple[str, bytes]:
    """What a builder has made as a message with these fields and a binary; its file is removed."""
    if made.error is not None:
        failed = messages.write(error=made.error.value, message=made.message, build_s=made.build_s)
        return failed, b""
    path = pathlib.Path(made.binary)
    content = messages.binary(path.read_bytes())
    path.unlink()
    return messages.write(suffix=path.suffix, build_s=made.build_s, **fields), content
