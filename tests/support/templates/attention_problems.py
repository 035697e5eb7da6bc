"""Products of attention: heads side by side in one tensor, two batch axes, causal masks."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from felix.runner.checking import reference
from felix.templates.gemm.problem import Epilogue, GemmProblem, Operand, Output, Place, Read

IMAGES, HEADS = 2, 3
#: Elements before the first element of C in its tensor, and behind its last.
BEFORE, BEHIND = 8, 64

_MASK = "(place0 <= place1 ? x * 0.25f + read0 : float(-10 - place2))"


def scores(
    rows: int,
    columns: int,
    dim: int,
    dtype: str = "bfloat16",
    *,
    before: int = 0,
    shared_keys: bool = False,
    out: str = "float32",
) -> GemmProblem:
    """C[b, h, s, t] = masked(Σ_d q[b, s, h, d] · k[b, t, h, d] + bias[h, s, t]).

    Parameters are qkv[b, s, before + 2 · h · d], the bias, and C[b, s, h, t] behind `BEFORE`
    elements; s and t are `rows` and `columns` of the longer one.

    Args:
        before: elements of a row of qkv that lie before the queries.
        shared_keys: all heads have the keys of the first.
    """
    width, length = before + 2 * HEADS * dim, max(rows, columns)
    strides = (dim, width, 1)
    outer = length * width
    keys = (0, width, 1) if shared_keys else strides
    return GemmProblem(
        IMAGES * HEADS,
        rows,
        columns,
        dim,
        Operand(0, dtype, strides, None, outer, before),
        Operand(0, dtype, keys, None, outer, before + HEADS * dim),
        "float32",
        Output(2, out, (columns, HEADS * columns, 1), rows * HEADS * columns, BEFORE),
        Epilogue(
            _MASK,
            (Read("read0", 1, dtype, (rows * columns, columns, 1), 0, 0),),
            (
                Place("place0", 2, 1, columns),
                Place("place1", 1, 1, rows),
                Place("place2", 0, 1, HEADS),
            ),
        ),
        3,
        HEADS,
    )


def arrays(problem: GemmProblem, seed: int = 0) -> list[NDArray[Any]]:
    """Random parameters of the problem; every byte of the output's is 0x5a."""
    rng = np.random.default_rng(seed)
    dtype = reference.np_dtype(problem.a.dtype)
    longest = max(problem.m, problem.n)
    qkv = rng.uniform(-1, 1, IMAGES * longest * problem.a.strides[1])
    bias = rng.uniform(-1, 1, HEADS * problem.m * problem.n)
    size = BEFORE + problem.batch * problem.m * problem.n + BEHIND
    output = np.zeros(size, reference.np_dtype(problem.output.dtype))
    output.view(np.uint8).fill(0x5A)
    return [qkv.astype(dtype), bias.astype(dtype), output]


def expected(problem: GemmProblem, inputs: list[NDArray[Any]]) -> NDArray[np.float64]:
    """C as [b, s, h, t] by numpy, from what the parameters mean."""
    rows, columns, dim = problem.m, problem.n, problem.k
    before, width = problem.a.offset, problem.a.strides[1]
    qkv = inputs[0].astype(np.float64).reshape(IMAGES, -1, width)
    q, key = (
        qkv[:, :length, first : first + HEADS * dim].reshape(IMAGES, length, HEADS, dim)
        for first, length in ((before, rows), (before + HEADS * dim, columns))
    )
    if problem.b.strides[0] == 0:
        key = np.broadcast_to(key[:, :, :1], key.shape)
    sums = np.einsum("bshd,bthd->bsht", q, key)
    bias = inputs[1].astype(np.float64).reshape(HEADS, rows, columns).transpose(1, 0, 2)
    s, h, t = np.indices((rows, HEADS, columns))
    return np.where(t <= s, sums * 0.25 + bias, -10.0 - h)
