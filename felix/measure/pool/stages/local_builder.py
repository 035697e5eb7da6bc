"""A builder that is a worker process of this machine."""

from __future__ import annotations

import os
import pathlib
from typing import Any

from felix import errors
from felix.measure import protocol
from felix.measure.pool import candidates, inbox, replies, rights
from felix.measure.pool import worker as pool_worker
from felix.measure.pool.stages import run_stage

_ErrorClass = protocol.ErrorClass


class LocalBuilder:
    """A `build_stage.Builder`: one worker, with a folder of its own.

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
        options: candidates.LocalOptions,
        kind: str,
    ) -> None:
        self.worker = worker
        self._folder, self._folders = folder, folders
        self._options, self._kind = options, kind

    def build(self, payload: str, name: str) -> candidates.Built:
        """Build a payload; what costs the worker its life is an error of the program."""
        return self.build_for(self._kind, payload, name)

    def build_for(self, kind: str, payload: str, name: str) -> candidates.Built:
        """Build a payload for devices of a kind, "cpu" or "cuda"."""
        request = self._request(kind, payload, str(self._folder / name))
        return self._made(request, self._options.build_timeout_s, busy=True)

    def reference(self, payload: str, name: str) -> candidates.Built:
        """Make the reference of the task whose payload this is, for devices of any kind."""
        options = self._options
        request = {
            "verb": "reference",
            "payload": payload,
            "stem": str(self._folder / name),
            "link": options.link.value,
            "seed": options.seed,
            "check": options.check,
        }
        return self._made(request, options.reference_timeout_s, busy=False)

    def is_back(self) -> bool:
        """A worker that died is replaced at the next build."""
        return True

    def _made(self, request: dict[str, Any], timeout_s: float, busy: bool) -> candidates.Built:
        try:
            reply = self._reply(request, timeout_s, busy)
        except (pool_worker.WorkerLost, errors.MeasureError) as error:
            build_s = error.cpu_s if isinstance(error, pool_worker.WorkerLost) else 0.0
            kind = run_stage.classify(error, _ErrorClass.BUILD)
            self.worker.clear()
            return candidates.Built(build_s=build_s, error=kind, message=f"building: {error}")
        if "error" in reply:
            return candidates.Built(
                build_s=reply["seconds"],
                error=_ErrorClass(reply["error"]),
                message=reply["message"],
            )
        return candidates.Built(
            reply["library"], reply.get("description", ""), build_s=reply["seconds"]
        )

    def _request(self, kind: str, payload: str, stem: str) -> dict[str, Any]:
        request = {"verb": "build", "payload": payload, "stem": stem}
        if kind != "cuda":
            return request | {"link": self._options.link.value}
        return request | {
            "verb": "build_cuda",
            "explicit": self._options.explicit_unroll,
            "scalars": self._options.scalar_registers,
            "options": self._options.nvrtc_options,
            "max_source_bytes": self._options.max_source_bytes,
        }

    def _reply(self, request: dict[str, Any], timeout_s: float, busy: bool) -> dict[str, Any]:
        """The reply of the worker; its library is where no worker can write."""
        reply = self.worker.call(request, timeout_s, busy=busy)
        try:
            reply = replies.checked(request, reply)
        except inbox.Nonsense as error:
            raise self.worker.misbehaved(f"it replied with {error}") from None
        if "error" in reply or not reply["library"]:
            return reply
        library = self._folders.libraries / pathlib.Path(reply["library"]).name
        try:
            os.replace(reply["library"], library)
        except OSError as error:  # the pool is closed
            raise errors.MeasureError(f"the library is gone: {error.strerror}") from error
        return reply | {"library": str(library)}
