"""What a network is compared with: PyTorch eager and compiled, ONNX Runtime.

A peer is a call without arguments that runs the model on fixed inputs. `eager` is the model as it
is, `eager-graph` its replay as one CUDA graph, `inductor` what `torch.compile` makes by default,
`reduce-overhead` and `max-autotune` by its modes of these names. ONNX Runtime runs the file that
PyTorch's TorchScript exporter writes, with inputs and outputs bound on the device.
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from benchmarks.networks import onnx_files

Call = Callable[[], Any]
#: `torch.compile`'s modes by the names of peers; None: its default.
MODES = {"inductor": None, "reduce-overhead": "reduce-overhead", "max-autotune": "max-autotune"}
EAGER, GRAPH, ONNX_RUNTIME = "eager", "eager-graph", "onnxruntime"
#: Tuned by TVM for as long as Felix is: `benchmarks.networks.stock`.
STOCK = "stock"
#: What TVM's own rules need. It takes long to import, and where Felix is first it puts an empty
#: module there.
INTRINSICS = "tvm.s_tir.tensor_intrin"
#: Peers by the kind of target, in the order in which they are prepared: compiling clears what
#: products of PyTorch work with, so the graph comes last.
EVERY = {
    "llvm": (EAGER, "inductor", ONNX_RUNTIME, STOCK),
    "cuda": (EAGER, "reduce-overhead", "max-autotune", "inductor", ONNX_RUNTIME, STOCK, GRAPH),
}
DEFAULT = {"llvm": (EAGER,), "cuda": (EAGER, "reduce-overhead", "max-autotune", GRAPH)}


class Unavailable(Exception):
    """A peer cannot run here, or not this network."""


def make(name: str, model: nn.Module, inputs: Sequence[torch.Tensor]) -> Call:
    """The peer of that name but stock; its first call compiles what is compiled.

    Calls have to be made under `torch.no_grad`, and this one, too.

    Raises:
        Unavailable: its package is missing.
        Exception: whatever the peer raises for this model.
    """
    if name == ONNX_RUNTIME:
        return _onnx_runtime(model, inputs)
    eager = functools.partial(model, *inputs)
    if name == EAGER:
        return eager
    if name == GRAPH:
        return _captured(eager)
    return functools.partial(torch.compile(model, mode=MODES[name], dynamic=False), *inputs)


def _captured(call: Call) -> Call:
    """The replay of a call, whose products work in memory of the graph's own."""
    from felix.network import cuda_graph

    cuda_graph.warm_up(call)
    graph, outputs = cuda_graph.captured(call)

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
