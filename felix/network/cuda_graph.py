"""A network's calls as one CUDA graph: a replay costs one launch.

Inputs and outputs of a captured network lie in fixed places. A call copies its inputs in and
replays; the outputs are overwritten by the next call.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from felix import errors
from felix.network import executable

#: Calls before the capture: kernels load, and pools of memory grow.
_WARM_UP = 3


class CapturedNetwork:
    """An executable whose calls replay a graph.

    Args:
        built: the network, on a GPU.
        examples: input tensors of a call, on the GPU.

    Raises:
        TuningError: the inputs are not on a GPU.
    """

    def __init__(self, built: executable.Executable, examples: Sequence[torch.Tensor]) -> None:
        if not examples or not all(each.is_cuda for each in examples):
            raise errors.TuningError("only a network with inputs on a GPU can be captured")
        self._inputs = [executable.as_stored(each).clone() for each in examples]
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(_WARM_UP):
                built(self._inputs)
        torch.cuda.current_stream().wait_stream(side)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._outputs = built(self._inputs)

    def __call__(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The outputs of one call, which the next call overwrites."""
        for place, value in zip(self._inputs, inputs, strict=True):
            place.copy_(value)
        self._graph.replay()
        return self._outputs
