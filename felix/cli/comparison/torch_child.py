"""The process that times PyTorch: `python -m felix.cli.comparison.torch_child`.

TF32 is off unless the task allows it, and sums of 16-bit floats stay in float32 where PyTorch lets
one say so, as in tasks.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from felix.cli.comparison import libraries as times
from felix.processes import child

if TYPE_CHECKING:
    from felix.runner.checking import reference
    from felix.workloads.torch_forms.contractions import Form

Call = Callable[..., torch.Tensor]


def answer(request: Mapping[str, Any]) -> times.LibraryTime:
    """The time of the form of the request's operator, eager or compiled."""
    from felix import errors
    from felix.measure import locks
    from felix.runner.checking import reference
    from felix.workloads import torch_forms

    device = request["device"]
    if device == "cuda" and not torch.cuda.is_available():
        return times.LibraryTime(None, f"{torch.__version__} has no GPU here")
    allow_tf32 = request["allow_tf32"]
    use_full_precision(allow_tf32)
    try:
        form = torch_forms.form(request["operator"], request["params"])
    except errors.WorkloadError as error:
        return times.LibraryTime(None, str(error))
    arguments = [reference.Argument(**fields) for fields in request["arguments"]]
    inputs = random_inputs(form, arguments, device)
    call = compiled(form.call, device) if request["compiled"] else form.call
    with locks.alone_on(device), torch.inference_mode():
        latency_us = median_us(call, inputs, device)
    note = ", ".join(filter(None, [_how(device, allow_tf32), form.note]))
    return times.LibraryTime(latency_us, note)


def use_full_precision(allow_tf32: bool = False) -> None:
    """No TF32 but where products may use it, and no sums in types of 16 bits."""
    torch.backends.cuda.matmul.allow_tf32 = allow_tf32
    torch.backends.cudnn.allow_tf32 = allow_tf32
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    torch.backends.cudnn.benchmark = True


def random_inputs(
    form: Form, arguments: Sequence[reference.Argument], device: str
) -> list[torch.Tensor]:
    """The inputs of the correctness check on a device, weights in PyTorch's memory order."""
    from felix.runner.checking import reference
    from felix.workloads import torch_forms

    arrays = reference.inputs(arguments, 0, positive=False)
    return form.stored(
        [
            torch_forms.tensor(array).to(device, copy=True)  # aligned, as torch's memory is
            for array, argument in zip(arrays, arguments, strict=True)
            if argument.is_input
        ]
    )


def compiled(call: Call, device: str) -> Call:
    """The call compiled by inductor; the first call compiles and chooses kernels."""
    mode = "max-autotune-no-cudagraphs" if device == "cuda" else "max-autotune"
    return torch.compile(call, mode=mode, dynamic=False)


def median_us(call: Call, inputs: Sequence[torch.Tensor], device: str) -> float:
    """The median latency with cold inputs, in us."""
    if device == "cuda":
        from felix.runner.calls import cuda_calls

        return cuda_calls.median_us(lambda: call(*inputs))
    import tvm

    from felix.runner.calls import cpu_calls

    rows = [each.as_strided((each.numel(),), (1,)) for each in inputs]  # as they lie in memory
    flat = [tvm.runtime.from_dlpack(row) for row in rows]
    return cpu_calls.median_us(lambda: call(*inputs), flat)


def _how(device: str, allow_tf32: bool) -> str:
    """Versions, threads or device, and what differs from the timing of candidates."""
    if device == "cuda":
        cudnn: Callable[[], int | None] = torch.backends.cudnn.version
        libraries = f"CUDA {torch.version.cuda}, cuDNN {cudnn()}"
        tf32 = "allowed" if allow_tf32 else "off"
        place = f"{torch.cuda.get_device_name()}, TF32 {tf32}, cold L2, without launch overhead"
    else:
        named: dict[str, Any] = {"oneDNN": torch.backends.mkldnn, "MKL": torch.backends.mkl}
        libraries = ", ".join(name for name, backend in named.items() if backend.is_available())
        count = torch.get_num_threads()
        place = f"{count} thread{'s' * (count != 1)}, cold caches"
    return f"{torch.__version__} ({libraries}), {place}, its allocations included"


if __name__ == "__main__":
    question = child.Question(sys.argv[1])
    question.answer(dataclasses.asdict(answer(question.request)))
