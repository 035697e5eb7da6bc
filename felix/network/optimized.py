"""The result of `optimize`: a callable with the model's signature."""

from __future__ import annotations

import dataclasses
import os
import pathlib
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch

from felix import errors
from felix.network import cuda_graph, imported, pytorch_model, report
from felix.network import executable as executables

#: What runs a call: the input tensors to the output tensors.
Runner: TypeAlias = Callable[[Sequence[torch.Tensor]], list[torch.Tensor]]


class OptimizedNetwork:
    """A tuned network: called as the model is, it returns what the model returns.

    Inputs are not changed and outputs are new in every call. Parameters are those that the model
    had when it was optimized: small ones are copies, and where large ones were changed in place
    calls raise an error. Calls compute no gradients.

    Attributes:
        report: what ships of each group and why, and what runs the calls; print it.
        executable: the network in TVM's virtual machine: lists of tensors in and out; None where
            there was no time to build it, and PyTorch runs the model.
    """

    def __init__(
        self,
        network: imported.Network,
        runs: tuple[executables.Executable, Runner] | pytorch_model.Call,
        summary: report.Report,
    ) -> None:
        self.report = summary
        self._network = _without_parameters(network)
        self.executable: executables.Executable | None = None
        self._runner: Runner | None = None
        self._model: pytorch_model.Call | None = None
        if isinstance(runs, tuple):
            self.executable, self._runner = runs
        else:
            self._model = runs

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The network's outputs, as the model returns them.

        Where PyTorch runs the model (`report.runs`) a call is one of the model: of its parameters
        as they are, and with what it allows and raises.

        Raises:
            WorkloadError: other shapes, types, structure or device than those it was optimized
                for, or the model's parameters were changed since.
            TuningError: a CUDA graph is being captured that cannot have the network's calls.
        """
        if self._model is not None:
            return self._model(*args, **kwargs)
        # it was built, or PyTorch runs the model
        assert self.executable is not None and self._runner is not None
        self.executable.check_unchanged()
        calling = self._network.imported.calling
        inputs = [torch.as_tensor(each) for each in calling.flatten(args, kwargs)]
        for value, example in zip(inputs, self._network.examples, strict=True):
            if value.device != example.device:
                raise errors.WorkloadError(
                    f"an input is on {value.device}; the network runs on {example.device}"
                )
        return calling.rebuild(self._runner(inputs))

    def leave_calls_to(self, model: pytorch_model.Call) -> None:
        """Let PyTorch run the model from now on; the artifact has the network."""
        self._model, self._runner = model, None

    def change_report(self, **changes: Any) -> None:
        """Let the report say something else."""
        self.report = dataclasses.replace(self.report, **changes)

    def export(self, folder: str | os.PathLike[str]) -> pathlib.Path:
        """Write the artifact of the network, which runs without Felix (`felix.network.bundle`).

        Raises:
            OutputError: the folder cannot be written.
            WorkloadError: the model's parameters were changed after it was optimized.
            TuningError: there was no time to build the network.
        """
        from felix.network.bundle import export

        if self.executable is None:
            raise errors.TuningError(
                "there is no artifact, for there was no time to build the network: give more "
                "seconds"
            )
        self.executable.check_unchanged()
        outputs = self._network.expected or self.executable(list(self._network.examples))
        content = export.Content(
            executable=self.executable.built,
            parameters=self.executable.parameters,
            outputs=outputs,
        )
        return export.write(self._network, content, self.report, folder)

    def __repr__(self) -> str:
        return f"OptimizedNetwork({self._network.name}, {len(self.report.groups)} groups)"


def _without_parameters(network: imported.Network) -> imported.Network:
    """A network that keeps nothing of the model's memory; its tolerance stays."""
    types = tuple(torch.empty(0, dtype=each) for each in imported.torch_dtypes(network.imported))
    model = dataclasses.replace(network.imported, parameters=types, parameter_names=())
    return dataclasses.replace(network, imported=model, model=None, file=None, ask_reference=None)


def runner(built: executables.Executable, examples: Sequence[torch.Tensor]) -> tuple[Runner, str]:
    """What runs calls of a network, and what that is in words: on a GPU one graph if it can be."""
    if not examples or not all(each.is_cuda for each in examples):
        return built, "TVM's virtual machine"
    try:
        captured = cuda_graph.CapturedNetwork(built, examples)
    except errors.TuningError as error:
        return built, f"TVM's virtual machine: {error}"
    return captured, f"one CUDA graph{_branching(captured.branching)}"


def _branching(branching: cuda_graph.Branching | None) -> str:
    """What a graph's branches gain, in words."""
    if branching is None:
        return ""
    kept = "with" if branching.pays else "without"
    return (
        f", {kept} {branching.n_branches} branches: {branching.branched_us:.1f} us with, "
        f"{branching.in_order_us:.1f} us without them"
    )
