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
from collections.abc import Mapping, Sequence

import torch

from felix.frontend import folding
from felix.network import assembly, executable
from felix.network.backend import partition
from felix.network.contenders import contest, shipping
from felix.network.passes import prepacking

#: Parameters are folded again so often.
MAX_REFRESHES = 8


class TunedPart:
    """A part as a network.

    Args:
        program: the part.
        shipped: what its groups run.
        parameters: its inputs that are parameters, by position.
        outputs: what PyTorch's operators give: (fake) tensors, for their layouts.

    Raises:
        MeasureError: a program cannot be compiled here.
    """

    def __init__(
        self,
        program: partition.PartProgram,
        shipped: Sequence[shipping.Shipped],
        parameters: Mapping[int, torch.Tensor],
        outputs: Sequence[torch.Tensor],
    ) -> None:
        runs = [
            (each.group, contest.program(each.contender, each.group, each.outcome))
            for each in shipped
        ]
        self._raw = program.raw
        mod = prepacking.prepack(assembly.assemble(program.lowered, runs))
        self._network = executable.Executable(
            executable.compile_network(mod, program.target),
            program.folded.parameters,
            executable.device(program.target),
        )
        self._positions = sorted(parameters)
        self._stamps = [_stamp(parameters[position]) for position in self._positions]
        self._n_refreshes = 0
        self._strides = [None if each.is_contiguous() else each.stride() for each in outputs]

    @property
    def can_be_captured(self) -> bool:
        """Whether a CUDA graph may have the network's calls."""
        return not self._network.pool_users

    def follow(self, inputs: Sequence[torch.Tensor]) -> bool:
        """Take the parameters as they are now; False if they change too often."""
        parameters = [inputs[position] for position in self._positions]
        stamps = [_stamp(each) for each in parameters]
        if stamps == self._stamps:
            return True
        if self._n_refreshes == MAX_REFRESHES:
            return False
        self._n_refreshes += 1
        values = tuple(each.detach() for each in parameters)
        self._raw = dataclasses.replace(self._raw, parameters=values)
        self._network.replace_parameters(folding.fold(self._raw).parameters)
        self._stamps = stamps
        return True

    def __call__(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The outputs of one call."""
        positions = set(self._positions)
        passed = [each for position, each in enumerate(inputs) if position not in positions]
        results = self._network(passed)
        return [self._as_in_pytorch(number, result) for number, result in enumerate(results)]

    def _as_in_pytorch(self, number: int, result: torch.Tensor) -> torch.Tensor:
        """An output in the layout that PyTorch gives it."""
        strides = self._strides[number]
        if strides is not None:
            place = torch.empty_strided(
                result.shape, strides, dtype=result.dtype, device=result.device
            )
            return place.copy_(result)
        return result


def can_follow(parameter: torch.Tensor) -> bool:
    """Whether changes of a parameter can be noticed."""
    return not parameter.is_inference()


def _stamp(parameter: torch.Tensor) -> tuple[int, int]:
    return parameter.data_ptr(), parameter._version
