"""Whether a network's outputs are those of the model it was made from.

The error of an output is max |y - y'| / (|y'| + r), r the root mean square of y', the model's
output. It may be `TOLERANCES[t]`, where t is the least precise element type among the network's
parameters and outputs: layers round after each other, so this is wider than for a single program.
Integers must be equal. In a network with floats one in a hundred may be off by 1, as a float next
to a tie is that is rounded.

TF32 has as many bits of the mantissa as float16, so a network of float32 whose products may be
computed in TF32 has the tolerance of float16.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from felix import errors
from felix.artifact import run_common
from felix.frontend.pytorch import comparison

#: By element type.
TOLERANCES: Mapping[torch.dtype, float] = comparison.TOLERANCES


def tolerance(dtypes: Iterable[torch.dtype], allow_tf32: bool = False) -> float:
    """The largest tolerance of element types; 0 if none is a float.

    Args:
        dtypes: element types.
        allow_tf32: products of float32 may be computed in TF32.
    """
    rounded = {torch.float32: torch.float16} if allow_tf32 else {}
    each = (TOLERANCES.get(rounded.get(dtype, dtype), 0.0) for dtype in dtypes)
    return max(each, default=0.0)


def check(actual: Sequence[torch.Tensor], expected: Sequence[torch.Tensor], limit: float) -> float:
    """The largest error of the outputs.

    Raises:
        TuningError: an output differs by more than the limit.
    """
    found = differences(actual, expected, limit)
    for number, error in enumerate(found):
        if not error <= limit:
            raise errors.TuningError(
                f"output {number} of the optimized network differs from the model's: relative "
                f"error {error:.1e}, tolerance {limit:.1e}. Nothing ships; please report this"
            )
    return max(found, default=0.0)


def agree(actual: Sequence[torch.Tensor], expected: Sequence[torch.Tensor], limit: float) -> bool:
    """Whether no output differs by more than the limit."""
    return all(error <= limit for error in differences(actual, expected, limit))


def differences(
    actual: Sequence[torch.Tensor], expected: Sequence[torch.Tensor], limit: float
) -> list[float]:
    """The error of each output."""
    pairs = zip(actual, expected, strict=True)
    return [difference(*pair, is_exact=limit == 0) for pair in pairs]


def difference(output: torch.Tensor, reference: torch.Tensor, is_exact: bool = True) -> float:
    """The error of an output; infinite where shapes, types or places of non-finite values differ.

    Integers that differ count as an infinite error, but for those that may be off by 1.

    Args:
        is_exact: no integer may.
    """
    if output.dtype != reference.dtype:
        return float("inf")
    if reference.dtype.is_complex:
        return 0.0 if torch.equal(output, reference) else float("inf")
    return run_common.difference(_array(output), _array(reference), is_exact)


def _array(tensor: torch.Tensor) -> Any:
    """A tensor for numpy, which has not all types of floats that PyTorch has."""
    host = tensor.detach().cpu()
    return (host.double() if host.dtype.is_floating_point else host).numpy()
