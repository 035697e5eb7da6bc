"""Builders and devices of other machines, as the stages of a pool know them."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from felix import errors
from felix.measure import inbox, running, work
from felix.measure.cluster import messages
from felix.runner import protocol

_ErrorClass = protocol.ErrorClass
#: Candidates of a request: of a GPU they take 40 ms together, which hides what a network takes.
BATCH = 8
#: What a node may make.
_SUFFIXES = {"build": inbox.SUFFIXES, "reference": inbox.REFERENCE_SUFFIXES}


class Link(Protocol):
    """The way to one node."""

    def call(self, method: str, *args: Any) -> Any:
        """Call a method of `node.Node`.

        Raises:
            WorkerGone: the node cannot be reached, or its process ended.
            MeasureError: the method raised something.
        """
        ...

    def await_return(self) -> bool:
        """Wait until the node answers; False: it never will, or the pool is closed."""
        ...


class RemoteBuilder:
    """A `building.Builder` on another machine.

    Args:
        link: to the node.
        folder: where libraries go here.
        kind: of the devices, "cpu" or "cuda".
    """

    def __init__(self, link: Link, folder: pathlib.Path, kind: str) -> None:
        self._link, self._folder, self._kind = link, folder, kind

    def build(self, payload: str, name: str) -> work.Built:
        """Build a payload there, and write the library here."""
        return self._made("build", name, payload=payload, **{"for": self._kind})

    def reference(self, payload: str, name: str) -> work.Built:
        """Make a task's reference there, and write it here."""
        return self._made("reference", name, payload=payload)

    def await_return(self) -> bool:
        """Wait until the node works again; False: it never will."""
        return self._link.await_return()

    def _made(self, method: str, name: str, **fields: str) -> work.Built:
        try:
            text, content = self._link.call(method, messages.write(**fields))
            return self._built(method, messages.read(text), content, name)
        except errors.MeasureError as error:
            infrastructure = _ErrorClass.INFRASTRUCTURE
            return work.Built(error=infrastructure, message=f"building: {error}")

    def _built(self, method: str, reply: dict[str, Any], content: bytes, name: str) -> work.Built:
        try:
            build_s = float(reply["build_s"])
            if "error" in reply:
                error, message = _ErrorClass(reply["error"]), str(reply["message"])
                if error is _ErrorClass.INFRASTRUCTURE:
                    raise work.WorkerGone(f"the node failed: {message}")
                return work.Built(build_s=build_s, error=error, message=message)
            if reply["suffix"] not in _SUFFIXES[method]:
                raise ValueError
        except (KeyError, TypeError, ValueError):
            raise errors.MeasureError("a node replied with what is no build") from None
        description = messages.description(reply) if method == "reference" else ""
        path = self._folder / f"{name}{reply['suffix']}"
        try:
            path.write_bytes(messages.binary(content))
        except OSError as error:  # the pool is closed
            raise errors.MeasureError(f"the library cannot be kept: {error.strerror}") from error
        return work.Built(str(path), description, build_s)


class RemoteRunner(running.Runner):
    """A device of another machine, which runs several candidates by one request.

    Args:
        link: to the node.
        client: a name of the pool; what runs for it can be interrupted by it.
    """

    batch_size = BATCH

    def __init__(self, link: Link, client: str) -> None:
        self._link, self._client = link, client
        #: names of the tasks that the node was given, by their references
        self._prepared: dict[work.Reference, str] = {}
        #: whether the node does something for this pool on its device
        self.is_called = False

    def open(self, arch: str) -> None:
        """Open the GPU."""
        reply = messages.read(self._called("open", arch))
        self.unconfined, self.broken = reply.get("unconfined"), reply.get("broken")

    def prepare(self, state: work.TaskState) -> None:
        """Run a task's reference there; `state` holds a failure for its candidates."""
        made, name = state.reference, ""
        path = pathlib.Path(made.binary)
        try:
            if made.failure is not None:
                raise errors.MeasureError(made.failure)
            content = path.read_bytes()
            name = messages.task_name(made.description, content)
            request = messages.write(description=made.description, suffix=path.suffix)
            reply = messages.read(self._called("prepare", request, [content]))
            state.failure, self.broken = reply.get("failure"), reply.get("broken")
        except (errors.MeasureError, OSError) as error:
            state.failure = str(error)
        self._prepared[made] = name

    def run(self, candidate: work.QueuedProgram, state: work.TaskState) -> protocol.Measurement:
        """Check and time one candidate."""
        ((_, measurement),) = self.run_all([(candidate, state)])
        return measurement

    def run_all(
        self, batch: Sequence[tuple[work.QueuedProgram, work.TaskState]]
    ) -> Iterator[tuple[work.QueuedProgram, protocol.Measurement]]:
        """Check and time candidates by one request; those that the node failed come last."""
        ready = []
        for candidate, state in batch:
            if state.reference not in self._prepared:
                self.prepare(state)
            if state.failure is None:
                ready.append((candidate, state))
            else:
                yield candidate, candidate.without_reference(state.failure)
        yield from self._sent(ready)

    def interrupt(self) -> None:
        """End what the node runs for this pool."""
        self._link.call("interrupt", self._client)

    def await_return(self) -> bool:
        """Wait until the node works again; False: it never will."""
        self._prepared.clear()
        return self._link.await_return()

    def _called(self, method: str, *args: Any) -> Any:
        self.is_called = True
        try:
            return self._link.call(method, *args)
        finally:
            self.is_called = False

    def _sent(
        self, batch: Sequence[tuple[work.QueuedProgram, work.TaskState]]
    ) -> Iterator[tuple[work.QueuedProgram, protocol.Measurement]]:
        """Results of a request; what the node has forgotten is prepared and sent once more."""
        forgotten = []
        for (candidate, state), result in self._results(batch):
            if result is None:
                self.prepare(state)
                forgotten.append((candidate, state))
            else:
                yield candidate, result
        for (candidate, _), result in self._results(forgotten):
            if result is None:
                raise work.WorkerGone("the node does not keep the task's reference")
            yield candidate, result

    def _results(
        self, batch: Sequence[tuple[work.QueuedProgram, work.TaskState]]
    ) -> Iterator[tuple[tuple[work.QueuedProgram, work.TaskState], protocol.Measurement | None]]:
        if not batch:
            return
        paths = [pathlib.Path(candidate.binary) for candidate, _ in batch]
        requests = [
            {
                "task": self._prepared[state.reference],
                "suffix": path.suffix,
                "thorough": candidate.thorough,
            }
            for (candidate, state), path in zip(batch, paths, strict=True)
        ]
        try:
            contents = [path.read_bytes() for path in paths]
            request = messages.write(client=self._client, candidates=requests)
            text = self._called("run", request, contents)
            results = messages.read(text)["results"]
            if len(results) != len(batch):
                raise errors.MeasureError("a node replied with too few or too many results")
            measured = [
                None if fields is None else messages.measurement(fields, candidate.build_s)
                for fields, (candidate, _) in zip(results, batch, strict=True)
            ]
        except (errors.MeasureError, OSError) as error:
            measured = [
                candidate.failed(_ErrorClass.INFRASTRUCTURE, f"running: {error}")
                for candidate, _ in batch
            ]
            yield from zip(batch, measured, strict=True)
            return
        failures = []
        for item, result in zip(batch, measured, strict=True):
            if result is not None and result.error is _ErrorClass.INFRASTRUCTURE:
                failures.append(result.message)  # by the node's fault: another one may try
            else:
                yield item, result
        if failures:
            raise work.WorkerGone(f"the node failed: {failures[0]}")
