"""A built network: TVM's virtual machine with its parameters, called with PyTorch's tensors.

Parameters are converted once. Inputs go in and outputs come out without copies (DLPack); an input
that is not contiguous, or does not begin at a multiple of `ALIGNMENT_BYTES`, is copied. Memory for
intermediate values is planned when the network is built and reused by every call. On a GPU the
kernels run on PyTorch's current stream, and nothing waits for them.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import torch
import tvm
from tvm import relax
from tvm.s_tir import dlight

from felix.measure.cuda import build as cuda_build

#: TVM's programs expect tensors to begin at a multiple of this.
ALIGNMENT_BYTES = 64


class Executable:
    """A network that runs; safe to call from several threads, one at a time.

    Args:
        built: the compiled network.
        parameters: the inputs of its `main` behind those of a call.
        device: where it runs.
    """

    def __init__(
        self,
        built: relax.VMExecutable,
        parameters: Sequence[Any],
        device: tvm.runtime.Device,
    ) -> None:
        self.built = built
        self._parameters = [_on_device(each, device) for each in parameters]
        self._machine = relax.VirtualMachine(built, device)
        self._main = self._machine["main"]
        self._lock = threading.Lock()

    @property
    def parameters(self) -> list[tvm.runtime.Tensor]:
        """The parameters as they are passed."""
        return self._parameters

    def __call__(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The outputs of one call."""
        ready = [as_stored(each) for each in inputs]
        with self._lock:
            outputs = self._main(*ready, *self._parameters)
        flat = [outputs] if isinstance(outputs, torch.Tensor | tvm.runtime.Tensor) else outputs
        return [_tensor(each) for each in flat]


def compile_network(mod: tvm.IRModule, full: tvm.target.Target) -> relax.VMExecutable:
    """Compile an assembled network, its programs as they are compiled when they are measured.

    Raises:
        MeasureError: for a GPU, and NVRTC or headers are missing here.
    """
    passes = _pipeline(full)
    if full.kind.name != "cuda":
        return relax.build(mod, target=full, relax_pipeline=passes)
    with cuda_build.compiling(full):
        return relax.build(mod, target=full, relax_pipeline=passes)


def _pipeline(full: tvm.target.Target) -> tvm.transform.Pass:
    """What is left to do with a lowered network; operators are fused already.

    On a GPU programs without threads get a schedule of TVM's rules (dlight).
    """
    schedule = [relax.backend.DispatchSampling(), relax.backend.DispatchSortScan()]
    if full.kind.name == "cuda":
        gpu = dlight.gpu
        rules = (gpu.Matmul(), gpu.GEMV(), gpu.Reduction(), gpu.GeneralReduction(), gpu.Fallback())
        schedule.append(dlight.ApplyDefaultSchedule(*rules))
    return tvm.transform.Sequential(
        [
            *schedule,
            relax.transform.ToNonDataflow(),
            relax.transform.RemovePurityChecking(),
            relax.transform.CallTIRRewrite(),
            relax.transform.StaticPlanBlockMemory(),
            relax.transform.LowerAllocTensor(),
            relax.transform.KillAfterLastUse(),
            relax.transform.LowerRuntimeBuiltin(),
            relax.transform.ComputePrimValue(),
            relax.transform.VMShapeLower(),
            relax.transform.AttachGlobalSymbol(),
        ]
    )


def device(full: tvm.target.Target) -> tvm.runtime.Device:
    """The device of this machine that a target's programs run on."""
    return tvm.runtime.device("cpu" if full.kind.name == "llvm" else str(full.kind.name), 0)


def as_stored(value: torch.Tensor) -> torch.Tensor:
    """A tensor as TVM takes it: contiguous and aligned; the same memory where it is so already."""
    tensor = value.detach().contiguous()
    return tensor.clone() if tensor.data_ptr() % ALIGNMENT_BYTES else tensor


def _tensor(output: Any) -> torch.Tensor:
    return output if isinstance(output, torch.Tensor) else torch.utils.dlpack.from_dlpack(output)


def _on_device(value: Any, place: tvm.runtime.Device) -> tvm.runtime.Tensor:
    """A parameter as a tensor of TVM on a device; the same memory if it lies there already."""
    if isinstance(value, torch.Tensor):
        value = tvm.runtime.from_dlpack(as_stored(value))
    return value if value.device == place else value.copyto(place)
