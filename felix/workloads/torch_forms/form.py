"""What a PyTorch form is, and the epilogues that forms share."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from numpy.typing import NDArray
from torch.nn import functional


@dataclasses.dataclass(frozen=True, slots=True)
class Form:
    """An operator in PyTorch.

    `call` takes the inputs of the task and returns its output, in the task's shape; in which
    order that lies in memory is the library's choice. `memory_order` has the weights that
    PyTorch's users keep in an order of their own: position of the input -> its axes, from
    outermost to innermost. `note` says what a reader of a latency should know of the form.
    """

    call: Callable[..., torch.Tensor]
    memory_order: Mapping[int, tuple[int, ...]] = dataclasses.field(default_factory=dict)
    note: str = ""

    def stored(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The same inputs in PyTorch's memory order: shapes and values stay."""
        stored = list(inputs)
        for position, order in self.memory_order.items():
            back = [order.index(axis) for axis in range(len(order))]
            stored[position] = inputs[position].permute(order).contiguous().permute(back)
        return stored


def tensor(array: NDArray[Any]) -> torch.Tensor:
    """The tensor of an array, in its memory; of types that numpy itself lacks as well."""
    if array.dtype.isbuiltin == 1:
        return torch.from_numpy(array)
    dtype: torch.dtype = getattr(torch, array.dtype.name)
    return torch.from_numpy(array.view(f"uint{8 * array.itemsize}")).view(dtype)


def split_bias(
    stages: Sequence[str], extra: Sequence[torch.Tensor]
) -> tuple[torch.Tensor | None, Sequence[str], Sequence[torch.Tensor]]:
    """A bias that is the first stage, which library calls add themselves, and what is left."""
    if stages and stages[0] == "bias":
        return extra[0], stages[1:], extra[1:]
    return None, stages, extra


def epilogue(
    output: torch.Tensor,
    stages: Sequence[str],
    extra: Sequence[torch.Tensor],
    channel_axis: int,
) -> torch.Tensor:
    """The stages on a tensor that nobody else has, in place where PyTorch can.

    Integers become floats of the scale's type by a scale.
    """
    operands = iter(extra)
    of_channels = [1] * output.ndim
    of_channels[channel_axis] = -1
    for stage in stages:
        match stage:
            case "bias":
                output = output.add_(next(operands).view(of_channels))
            case "residual":
                output = output.add_(next(operands))
            case "scale":
                output = _scaled(output, next(operands).view(of_channels))
            case "scalar_scale":
                output = _scaled(output, next(operands))
            case "relu":
                output = output.relu_()
            case _:
                output = functional.gelu(output)
    return output


def _scaled(output: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return output.mul_(scale) if output.is_floating_point() else output * scale
