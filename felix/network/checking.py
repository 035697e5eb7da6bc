"""Whether a network computes what its model does: on the examples, and on inputs beside them.

An ONNX file's outputs are those of its judge (`judge`). A PyTorch model is called besides with
inputs like its examples: the values of each moved to other places and scaled a little, and the
same eight times as large. Drawn integers stay within the example's range; masks, booleans and
numbers stay what they are. That may take a tenth of the whole call, or `LEAST_S`; what is left out
is said. Where the model's own outputs depend on the rounding of its inputs, nothing is compared.

What differs is traced to the first operator that does (`differences`).
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch

from felix import errors
from felix.network import agreement, assembly, differences, imported

#: Seconds that checking may take, where a tenth of the call is less.
LEAST_S = 2.0
_SHARE = 0.1
#: Inputs beside the examples, and the factor of their values.
BESIDE = {"like the examples": 1.0, "8 times as large": 8.0}
#: The network: tensors to tensors.
_Run: TypeAlias = Callable[[Sequence[torch.Tensor]], Sequence[torch.Tensor]]
_HALF = (torch.float16, torch.bfloat16)
#: What a model raises for inputs that it does not take.
_REFUSALS = (
    RuntimeError, ValueError, TypeError, LookupError, ArithmeticError, AssertionError,
)  # fmt: skip


@dataclasses.dataclass(frozen=True, slots=True)
class Checked:
    """What was found: the network with its judge (`judged`), the largest error on the examples,
    how long that call took, and what was not compared, and why."""

    network: imported.Network
    max_error: float
    call_s: float
    left_out: tuple[str, ...] = ()


def judged(
    network: imported.Network, outputs: Sequence[torch.Tensor] | None = None
) -> imported.Network:
    """The network of an ONNX file with the outputs of its judge: of ONNX Runtime where these are
    those of its calls or of its build without tuning, else of ONNX's reference.

    Args:
        network: of any model; another one stays as it is.
        outputs: of its calls on the examples; None: it is not built yet.

    Raises:
        TuningError: the outputs without tuning are neither those of ONNX Runtime, nor those of
            ONNX's reference.
    """
    if network.expected is None or network.ask_reference is None:
        return network
    if outputs is not None and agreement.agree(outputs, network.expected, network.tolerance):
        return network  # whatever its build without tuning computes
    plain = assembly.untuned_outputs(network)
    if agreement.agree(plain, network.expected, network.tolerance):
        return network
    found = network.ask_reference()
    if found.outputs and agreement.agree(plain, found.outputs, network.tolerance):
        return dataclasses.replace(network, expected=found.outputs, judged_by=found.by)
    try:
        agreement.check(plain, network.expected, network.tolerance)
    except errors.TuningError as error:
        raise errors.TuningError(
            f"the ONNX file as it is imported differs from {network.judged_by}: {error}."
            f"{differences.explained(network, network.examples)}"
        ) from error
    return network


def check(network: imported.Network, run: _Run, elapsed_s: float) -> Checked:
    """Compare a network's outputs with the model's.

    Args:
        network: with the outputs that are expected on its examples, if anybody knows them.
        run: its calls.
        elapsed_s: what the whole call has taken so far.

    Raises:
        TuningError: they differ.
    """
    begin = time.perf_counter()
    outputs = run(list(network.examples))
    if any(each.is_cuda for each in outputs):
        torch.cuda.synchronize()
    call_s = time.perf_counter() - begin
    network = judged(network, outputs)
    expected = network.expected or assembly.untuned_outputs(network)
    error = _compared(network, outputs, network.examples, expected, "the example inputs")
    if network.model is None:
        return Checked(network, error, call_s)
    budget_s = max(LEAST_S, _SHARE * elapsed_s)
    left_out = []
    for number, (name, factor) in enumerate(BESIDE.items()):
        spent_s = time.perf_counter() - begin
        if spent_s * (number + 2) / (number + 1) > budget_s:
            left_out.append(f"inputs {name}: checking them takes more than {budget_s:.0f} s")
            continue
        if (why := _beside(network, run, name, factor)) is not None:
            left_out.append(f"inputs {name}: {why}")
    return Checked(network, error, call_s, tuple(left_out))


def _beside(network: imported.Network, run: _Run, name: str, factor: float) -> str | None:
    """Compare on drawn inputs; why nothing is compared, if so."""
    inputs = drawn(network.examples, factor)
    if inputs is None:
        return "every input is a mask, a number or of one integer"
    try:
        expected = imported.outputs_on(network, inputs)
        moved = imported.outputs_on(network, [_moved(each) for each in inputs])
    except _REFUSALS as error:
        return f"the model does not take them ({type(error).__name__})"
    if any(each.dtype in _HALF and not each.isfinite().all() for each in expected):
        return "the model's outputs are beyond its element type"
    if not agreement.agree(moved, expected, network.tolerance):
        return "the model's own outputs depend on the rounding of its inputs"
    _compared(network, run(list(inputs)), inputs, expected, f"inputs {name}")
    return None


def _compared(
    network: imported.Network,
    outputs: Sequence[torch.Tensor],
    inputs: Sequence[torch.Tensor],
    expected: Sequence[torch.Tensor],
    where: str,
) -> float:
    try:
        return agreement.check(outputs, expected, network.tolerance)
    except errors.TuningError as error:
        raise errors.TuningError(
            f"on {where} {error}.{differences.explained(network, inputs)}"
        ) from error


def drawn(examples: Sequence[torch.Tensor], factor: float) -> list[torch.Tensor] | None:
    """Other inputs of the examples' kind; None where none may be another one.

    Args:
        examples: tensors of any types.
        factor: of floats.
    """
    generator = torch.Generator().manual_seed(0)
    made = [_drawn(each, factor, generator) for each in examples]
    is_same = all(new is old for new, old in zip(made, examples, strict=True))
    return None if is_same else made


def _drawn(example: torch.Tensor, factor: float, generator: torch.Generator) -> torch.Tensor:
    count = example.numel()
    if count < 2 or example.dtype == torch.bool or example.dtype.is_complex:
        return example
    flat = example.detach().cpu().reshape(-1)
    low, high = flat.min(), flat.max()
    if not example.dtype.is_floating_point:
        least, most = int(low), int(high)
        if most - least < 2:  # masks, too
            return example
        end = min(most + 1, torch.iinfo(torch.int64).max)
        values = torch.randint(least, end, (count,), generator=generator)
    elif not flat.isfinite().all() or (low != high and len(set(flat.tolist())) == 2):
        return example
    else:
        wide = flat.double()
        if low == high == 0:
            wide = torch.randn(count, dtype=torch.float64, generator=generator)
        values = wide[torch.randperm(count, generator=generator)]
        scale = 0.5 + torch.rand(count, dtype=torch.float64, generator=generator)
        values = values * scale * factor
    return values.to(example.dtype).reshape(example.shape).to(example.device)


def _moved(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor whose floats are off by a rounding."""
    if not tensor.dtype.is_floating_point:
        return tensor
    signs = torch.ones_like(tensor, memory_format=torch.contiguous_format)
    signs.view(-1)[::2] = -1
    return tensor * (1 + signs * torch.finfo(tensor.dtype).eps)
