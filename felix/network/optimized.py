"""The result of `optimize`: a callable with the model's signature."""

from __future__ import annotations

import os
import pathlib
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from felix.network import executable as executables
from felix.network import imported, report

#: Whole calls are timed so often, and for so long at most.
REPEATS, BUDGET_S = 30, 1.0


class OptimizedNetwork:
    """A tuned network: called as the model is, it returns what the model returns.

    Inputs are not changed and outputs are new in every call. Parameters are those that the model
    had when it was optimized; where folding left them as they were they share the model's memory,
    so do not change the model's parameters afterwards. Calls compute no gradients.

    Attributes:
        report: what ships of each group and why; print it.
    """

    def __init__(
        self,
        network: imported.Network,
        built: executables.Executable,
        summary: report.Report,
    ) -> None:
        self.report = summary
        self._network = network
        self._executable = built

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The network's outputs, as the model returns them.

        Raises:
            WorkloadError: other shapes, types or structure than those it was optimized for.
        """
        calling = self._network.imported.calling
        return calling.rebuild(self._executable(calling.flatten(args, kwargs)))

    @property
    def executable(self) -> executables.Executable:
        """What runs: lists of tensors in and out."""
        return self._executable

    def export(self, folder: str | os.PathLike[str]) -> pathlib.Path:
        """Write the artifact of the network, which runs without Felix (`felix.network.bundle`).

        Raises:
            OutputError: the folder cannot be written.
        """
        from felix.network.bundle import export

        return export.write(self._network, self._executable, self.report, folder)

    def __repr__(self) -> str:
        return f"OptimizedNetwork({self._network.name}, {len(self.report.groups)} groups)"


def timing(
    network: imported.Network,
    built: executables.Executable,
    model: Callable[[], object] | None,
    repeats: int = REPEATS,
) -> report.Timing:
    """Time whole calls of the network, and of the model, on the example inputs."""
    inputs = list(network.examples)
    with torch.no_grad():
        return report.Timing(
            network_us=median_us(lambda: built(inputs), network.examples, repeats),
            model_us=None if model is None else median_us(model, network.examples, repeats),
            repeats=repeats,
        )


def median_us(call: Callable[[], object], inputs: Sequence[torch.Tensor], repeats: int) -> float:
    """Median time of a call by wall clock, with warm caches, in us."""
    is_gpu = any(each.is_cuda for each in inputs)
    latencies_us: list[float] = []
    call()
    end = time.perf_counter() + BUDGET_S
    while len(latencies_us) < repeats and (not latencies_us or time.perf_counter() < end):
        if is_gpu:
            torch.cuda.synchronize()
        begin = time.perf_counter()
        call()
        if is_gpu:
            torch.cuda.synchronize()
        latencies_us.append((time.perf_counter() - begin) * 1e6)
    return statistics.median(latencies_us)
