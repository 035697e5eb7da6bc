"""A network's calls as one CUDA graph: a replay costs one launch.

Inputs and outputs of a captured network lie in fixed places. A call copies its inputs in, replays,
and copies the outputs out, on PyTorch's current stream. Nothing waits for the GPU.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

import torch

from felix import errors
from felix.network import executable

#: Calls before the capture: kernels load, and pools of memory grow.
_WARM_UP = 3


class CapturedNetwork:
    """An executable whose calls replay a graph; safe to call from several threads.

    While the caller captures a graph of its own, the executable runs without this one: it becomes
    a part of the caller's.

    Args:
        built: the network, on a GPU.
        examples: input tensors of a call, on the GPU.

    Raises:
        TuningError: the inputs are not on a GPU, or the network cannot be captured.
    """

    def __init__(self, built: executable.Executable, examples: Sequence[torch.Tensor]) -> None:
        if not examples or not all(each.is_cuda for each in examples):
            raise errors.TuningError("only a network with inputs on a GPU can be captured")
        self._built = built
        self._lock = threading.Lock()
        with torch.inference_mode(False):
            self._inputs = [executable.as_stored(each).clone() for each in examples]
        self._stream = torch.cuda.current_stream()
        try:
            self._graph, self._outputs = _captured(built, self._inputs)
        except (RuntimeError, ValueError) as error:
            lines = str(error).strip().splitlines() or [type(error).__name__]
            raise errors.TuningError(f"the network cannot be captured: {lines[0]}") from error

    def __call__(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The outputs of one call, new tensors."""
        stream = torch.cuda.current_stream()
        if torch.cuda.is_current_stream_capturing():
            return self._built(inputs)
        with self._lock, torch.no_grad():
            if stream != self._stream:  # the last call may still use the fixed places
                stream.wait_stream(self._stream)
                self._stream = stream
            for place, value in zip(self._inputs, inputs, strict=True):
                place.copy_(value)
            self._graph.replay()
            return [each.clone() for each in self._outputs]


def _captured(
    built: executable.Executable, inputs: Sequence[torch.Tensor]
) -> tuple[torch.cuda.CUDAGraph, list[torch.Tensor]]:
    """The graph of a call, and the outputs that it writes."""
    current = torch.cuda.current_stream()
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(current)
    with torch.cuda.stream(side):
        for _ in range(_WARM_UP):
            built(inputs)
    current.wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outputs = built(inputs)
    return graph, outputs
