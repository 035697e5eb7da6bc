"""What a network is compared with: PyTorch eager and compiled, ONNX Runtime.

A peer is a call without arguments that runs the model on fixed inputs. `eager` is the model as it
is, `eager-graph` its replay as one CUDA graph, `inductor` what `torch.compile` makes by default,
`reduce-overhead` and `max-autotune` by its modes of these names. ONNX Runtime runs the file that
PyTorch's TorchScript exporter writes, with inputs and outputs bound on the device.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from benchmarks.networks import onnx_files

Call = Callable[[], Any]
#: `torch.compile`'s modes by the names of peers; None: its default.
MODES = {"inductor": None, "reduce-overhead": "reduce-overhead", "max-autotune": "max-autotune"}
ONNX_RUNTIME = "onnxruntime"
#: Peers on each kind of device.
CPU = ("eager", "inductor", "max-autotune", ONNX_RUNTIME)
CUDA = ("eager", "eager-graph", *MODES, ONNX_RUNTIME)


class Unavailable(Exception):
    """A peer cannot run here, or not this network."""


def make(name: str, model: nn.Module, inputs: Sequence[torch.Tensor]) -> Call:
    """The peer of that name, ready to be timed; what it compiles is compiled.

    Raises:
        Unavailable: its package is missing.
        Exception: whatever the peer raises for this model.
    """
    with torch.no_grad():
        if name == "eager":
            call: Call = lambda: model(*inputs)  # noqa: E731
        elif name == "eager-graph":
            call = _captured(model, inputs)
        elif name == ONNX_RUNTIME:
            call = _onnx_runtime(model, inputs)
        else:
            compiled = torch.compile(model, mode=MODES[name], dynamic=False)
            call = lambda: compiled(*inputs)  # noqa: E731
        for _ in range(3):
            call()
    return call


def _captured(model: nn.Module, inputs: Sequence[torch.Tensor]) -> Call:
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            model(*inputs)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outputs = model(*inputs)

    def replay() -> Any:
        graph.replay()
        return outputs

    return replay


def _onnx_runtime(model: nn.Module, inputs: Sequence[torch.Tensor]) -> Call:
    if importlib.util.find_spec(ONNX_RUNTIME) is None:
        raise Unavailable("onnxruntime is not installed")
    import onnxruntime

    is_gpu = inputs[0].is_cuda
    provider = "CUDAExecutionProvider" if is_gpu else "CPUExecutionProvider"
    if provider not in onnxruntime.get_available_providers():
        raise Unavailable(f"onnxruntime has no {provider}")
    session = onnxruntime.InferenceSession(onnx_files.export(model, inputs), providers=[provider])
    binding, place = session.io_binding(), "cuda" if is_gpu else "cpu"
    for spec, tensor in zip(session.get_inputs(), inputs, strict=True):
        value = onnxruntime.OrtValue.from_dlpack(tensor.contiguous().__dlpack__())
        binding.bind_ortvalue_input(spec.name, value)
    for spec in session.get_outputs():
        binding.bind_output(spec.name, place)

    def run() -> Any:
        session.run_with_iobinding(binding)
        return [torch.from_dlpack(each) for each in binding.get_outputs()]

    return run
