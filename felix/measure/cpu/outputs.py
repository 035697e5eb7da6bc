"""What a compiled program computes on this CPU, for inputs of a seed.

TVM's code for CPUs converts float8 wrongly (0 becomes 2^-7), so references take float32 in its
place (`task_program.without_float8`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tvm

from felix.measure.checking import expected, reference
from felix.tir import grammar


def run_of(func: Any, args: Sequence[reference.Argument]) -> expected.Run:
    """A reference as a function from a seed and whether inputs are positive to its outputs."""

    def run(seed: int, positive: bool) -> dict[int, reference.Array]:
        arrays = reference.inputs(args, seed, positive=positive)
        tensors = [tvm.runtime.tensor(_as_float32(array)) for array in arrays]
        func(*tensors)
        return {
            i: tensors[i].numpy().astype(arrays[i].dtype, copy=False)
            for i, arg in enumerate(args)
            if arg.is_output
        }

    return run


def _as_float32(array: reference.Array) -> reference.Array:
    """Float8 as a reference takes it; other arrays as they are."""
    return array.astype(np.float32) if array.dtype.name in grammar.STORAGE_DTYPES else array
