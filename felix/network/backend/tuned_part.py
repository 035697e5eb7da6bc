"""A part as Felix runs it: a network whose parameters are those of the model at each call.

Folding makes parameters of its own out of the model's (batch norm, casts), and those that are
passed on may lie in copies. So each call compares where the model's parameters lie and their
version counters, which PyTorch raises at every change in place, with those that the network was
made from. After a change the parameters are folded again, `MAX_REFRESHES` times at most: a model
whose parameters change all the time is faster in PyTorch. A change in place through `.data` has a
counter of its own and is not noticed.

Outputs have PyTorch's layouts and memory of their own.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch

from felix import errors
from felix.frontend import folding
from felix.frontend.pytorch import calling
from felix.network import assembly, executable, in_context
from felix.network.backend import partition, tracing
from felix.network.contenders import contest, shipping
from felix.network.passes import prepacking
from felix.tir import grammar

#: Parameters are folded again so often.
MAX_REFRESHES = 8


class TunedPart:
    """A part as a network.

    Args:
        cut: the part.
        program: of the part.
        shipped: what its groups run.

    Attributes:
        can_be_captured: whether a CUDA graph may have its calls.
        shipped: what its groups run.

    Raises:
        MeasureError: a program cannot be compiled here.
    """

    def __init__(
        self,
        cut: partition.Cut,
        program: partition.PartProgram,
        shipped: Sequence[shipping.Shipped],
    ) -> None:
        parameters = cut.parameters
        self.shipped = shipped
        self._raw = program.raw
        mod = prepacking.prepack(assembly.assemble(program.lowered, contest.runs(shipped)))
        self._network = executable.build(mod, program.target, program.folded.parameters)
        self._positions = sorted(parameters)
        n_inputs = len(program.raw.inputs) + len(parameters)
        self._passed = [each for each in range(n_inputs) if each not in parameters]
        self._stamps = [_stamp(parameters[position]) for position in self._positions]
        self._n_refreshes = 0
        #: layouts of the outputs that are not contiguous, by number
        self._strides = {
            number: node.meta["val"].stride()
            for number, node in enumerate(tracing.results(cut.graph))
            if not node.meta["val"].is_contiguous()
        }
        self.can_be_captured = not self._network.pool_users

    def follow(self, inputs: Sequence[torch.Tensor]) -> bool:
        """Take the parameters as they are now; False if they change too often."""
        stamps = [_stamp(inputs[position]) for position in self._positions]
        if stamps == self._stamps:
            return True
        if self._n_refreshes == MAX_REFRESHES:
            return False
        self._n_refreshes += 1
        values = tuple(inputs[position].detach() for position in self._positions)
        self._raw = dataclasses.replace(self._raw, parameters=values)
        self._network.replace_parameters(folding.fold(self._raw).parameters)
        self._stamps = stamps
        return True

    def __call__(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The outputs of one call."""
        results = self._network([inputs[position] for position in self._passed])
        for number, strides in self._strides.items():
            results[number] = _laid_out(results[number], strides)
        return results

    def moved_back(
        self, cut: partition.Cut, program: partition.PartProgram, inputs: Sequence[torch.Tensor]
    ) -> TunedPart | None:
        """The part with groups back in PyTorch that take longer here (`in_context`); None if there
        are none, or it cannot be built."""

        def build(shipped: Sequence[shipping.Shipped]) -> executable.Executable:
            return TunedPart(cut, program, shipped)._network

        passed = [inputs[position] for position in self._passed]
        try:
            shipped = in_context.moved_back(
                program.lowered, self.shipped, self._network, build, passed
            )
            return None if shipped is None else TunedPart(cut, program, shipped)
        except (errors.FelixError, *grammar.TVM_ERRORS):
            return None

    def unfit(self, inputs: Sequence[torch.Tensor]) -> str | None:
        """Why the network does not take inputs; None if it does.

        Some of PyTorch's operators give another type than they say when they are traced.
        """
        for spec, position in zip(self._raw.inputs, self._passed, strict=True):
            given = inputs[position]
            if calling.dtype_name(given.dtype) != spec.dtype:
                return f"PyTorch says {spec.dtype} of an input that is {given.dtype}"
        return None


def _laid_out(result: torch.Tensor, strides: Sequence[int]) -> torch.Tensor:
    """An output in the layout that PyTorch gives it."""
    place = torch.empty_strided(result.shape, strides, dtype=result.dtype, device=result.device)
    if not _overlaps(result.shape, strides):
        return place.copy_(result)
    offsets = torch.zeros((), dtype=torch.int64, device=result.device)
    for extent, stride in zip(result.shape, strides, strict=True):
        offsets = offsets.unsqueeze(-1) + stride * torch.arange(extent, device=result.device)
    place.as_strided((int(offsets.max()) + 1,), (1,))[offsets] = result
    return place


def _overlaps(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether elements of a tensor may lie in the same place, as those of an expanded one do."""
    reached = 0
    for stride, extent in sorted(zip(strides, shape, strict=True)):
        if extent > 1:
            if stride <= reached:
                return True
            reached += stride * (extent - 1)
    return False


def _stamp(parameter: torch.Tensor) -> tuple[int, int]:
    return parameter.data_ptr(), parameter._version
