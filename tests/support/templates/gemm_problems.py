"""GEMM problems computed by numpy, with the epilogue's own C++ compiled for the CPU."""

from __future__ import annotations

import ctypes
import pathlib
import re
import subprocess
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from felix.runner.checking import reference
from felix.templates.gemm.problem import (
    Epilogue,
    GemmProblem,
    Operand,
    Output,
    Place,
    Read,
    Tensor,
)

Array: TypeAlias = NDArray[Any]
Function: TypeAlias = Callable[[Array, Sequence[Array]], Array]

_PRELUDE = """
static inline int min(int a, int b) { return a < b ? a : b; }
static inline int max(int a, int b) { return a > b ? a : b; }
"""
GELU = "[&] { const float t0 = x + read0; return t0 * 0.5f * (1.0f + erff(t0 * 0.7f)) + read1; }()"


def dense(
    m: int,
    n: int,
    k: int,
    dtype: str = "bfloat16",
    *,
    batch: int = 1,
    layouts: str = "kk",
    out: str | None = None,
    fused: bool | str = False,
    places: tuple[Place, ...] = (),
    shared: bool = False,
    offset: int = 0,
) -> GemmProblem:
    """A product of compact tensors.

    Args:
        layouts: for A and B, "k" contiguous along k, else along rows or columns.
        fused: with bias, GELU and residual, or with another expression of `x` and these reads.
        shared: one B for all batches.
        offset: of A, in elements.
    """
    is_integer = dtype == "int8"
    out = out or ("int32" if is_integer else dtype)

    def operand(param: int, rows: int, along: str, is_shared: bool = False) -> Operand:
        strides = (0 if is_shared else rows * k, *((k, 1) if along == "k" else (1, rows)))
        return Operand(param, dtype, strides, offset=0 if param else offset)

    a, b = operand(0, m, layouts[0]), operand(1, n, layouts[1], shared)
    accumulator, c = "int32" if is_integer else "float32", (m * n, n, 1)
    if not fused:
        return GemmProblem(batch, m, n, k, a, b, accumulator, Output(2, out, c), Epilogue(), 3)
    reads = (Read("read0", 2, dtype, (0, 0, 1)), Read("read1", 3, out, c))
    epilogue = Epilogue(GELU if fused is True else fused, reads, places)
    return GemmProblem(batch, m, n, k, a, b, accumulator, Output(4, out, c), epilogue, 5)


def compile_epilogues(problems: Sequence[GemmProblem], folder: pathlib.Path) -> list[Function]:
    """A function of sums and reads, both of any one shape, for each problem's epilogue."""
    sources = [_source(number, each) for number, each in enumerate(problems)]
    library = folder / "epilogues.so"
    command = ["cc", "-w", "-O1", "-shared", "-fPIC", "-x", "c++", "-", "-o", str(library), "-lm"]
    subprocess.run(command, input=_PRELUDE + "".join(sources), text=True, check=True)
    loaded = ctypes.CDLL(str(library))
    return [_function(loaded[f"epilogue{n}"], each) for n, each in enumerate(problems)]


def arrays(problem: GemmProblem) -> list[Array]:
    """Compact parameters with random values; the output is poison, and 64 elements behind it, too.

    The epilogue reads at most a row and a whole C, in this order.
    """
    p, rng = problem, np.random.default_rng(0)
    b_batches = p.batch if p.b.strides[0] else 1
    sizes = [p.batch * p.m * p.k + p.a.offset, b_batches * p.n * p.k]
    sizes += [p.n, p.batch * p.m * p.n][: len(p.epilogue.reads)]
    dtypes = [p.a.dtype, p.b.dtype, *(read.dtype for read in p.epilogue.reads)]
    is_integer = p.accumulator == "int32"
    inputs = [
        (rng.integers(-9, 10, size) if is_integer else rng.uniform(-1, 1, size)).astype(
            reference.np_dtype(dtype)
        )
        for size, dtype in zip(sizes, dtypes, strict=True)
    ]
    output = aligned(np.zeros(p.batch * p.m * p.n + 64, reference.np_dtype(p.output.dtype)))
    output.view(np.uint8).fill(0x5A)
    return [*map(aligned, inputs), output]


def aligned(array: Array) -> Array:
    """A copy that begins at a multiple of 256 bytes, as device memory does."""
    space = np.zeros(array.nbytes + 256, np.uint8)
    start = -space.ctypes.data % 256
    result = space[start : start + array.nbytes].view(array.dtype)
    result[...] = array
    return result


def evaluate(
    problem: GemmProblem, arrays: Sequence[Array], function: Function
) -> tuple[int, Array]:
    """The number of the output parameter, and what the problem says that it holds.

    Args:
        arrays: the parameters, compact.
        function: of the epilogue; its reads are followed by its places.
    """
    wide = np.float64 if problem.accumulator == "float32" else np.int64
    batch, m, n, k = problem.batch, problem.m, problem.n, problem.k
    a, b = (
        factor(problem, operand, arrays[operand.param], (rows, k)).astype(wide)
        for operand, rows in ((problem.a, m), (problem.b, n))
    )
    sums = np.einsum("abik,abjk->abij", a, b).astype(problem.accumulator)
    reads = [matrices(problem, r, arrays[r.param], (m, n)) for r in problem.epilogue.reads]
    index = np.indices((batch, m, n)).reshape(3, *sums.shape)
    places = [index[p.axis] // p.divisor % p.extent for p in problem.epilogue.places]
    values = function(sums, [*reads, *places])
    output = np.zeros_like(arrays[problem.output.param])
    if not reference.is_float(problem.output.dtype):
        values = values.astype(np.int64)
    matrices(problem, problem.output, output, (m, n))[...] = values.astype(output.dtype)
    return problem.output.param, output


def factor(problem: GemmProblem, operand: Operand, array: Array, shape: tuple[int, int]) -> Array:
    """An operand's matrices, [outer batch][inner batch][row or column][k]."""
    gather = operand.gather
    if gather is None:
        return matrices(problem, operand, array, shape)
    assert shape == (gather.rows, gather.k)
    inner_batch = problem.inner_batch or problem.batch
    n = len(gather.windows)
    outer, inner, image, *at, channel = np.indices(
        (
            problem.batch // inner_batch,
            inner_batch,
            gather.images,
            *(w.outputs for w in gather.windows),
            *(w.taps for w in gather.windows),
            gather.channels,
        ),
        sparse=True,
    )
    offset = outer * operand.outer_stride + inner * operand.strides[0] + operand.offset
    offset = offset + image * gather.image_stride + channel * gather.channel_stride
    inside: Any = True
    for window, output, tap in zip(gather.windows, at[:n], at[n:], strict=True):
        place = output * window.stride + tap * window.dilation - window.before
        inside = inside & (place >= 0) & (place < window.extent)
        offset = offset + place * window.element_stride
    inside = np.broadcast_to(inside, offset.shape)
    assert offset[inside].max() < array.size
    values = np.zeros(offset.shape, array.dtype)
    values[inside] = array.reshape(-1)[offset[inside]]
    return values.reshape(*offset.shape[:2], *shape)


def matrices(problem: GemmProblem, tensor: Tensor, array: Array, shape: tuple[int, int]) -> Array:
    """A tensor's matrices, [outer batch][inner batch][rows][columns], in a compact array."""
    inner = problem.inner_batch or problem.batch
    extents = (problem.batch // inner, inner, *shape)
    strides = (tensor.outer_stride, *tensor.strides)
    return view(array.reshape(-1)[tensor.offset :], extents, strides)


def view(array: Array, shape: tuple[int, ...], strides: tuple[int, ...]) -> Array:
    """A compact array's elements by strides in elements; none beyond its end."""
    last = sum((extent - 1) * stride for extent, stride in zip(shape, strides, strict=True))
    assert last < array.size
    steps = [stride * array.itemsize for stride in strides]
    return np.lib.stride_tricks.as_strided(array.reshape(-1), shape, steps)


def _source(number: int, problem: GemmProblem) -> str:
    x = "float" if problem.accumulator == "float32" else "int"
    names = [each.name for each in (*problem.epilogue.reads, *problem.epilogue.places)]
    kinds = _kinds(problem.epilogue)
    params = "".join(f", const {k} *{n}s" for k, n in zip(kinds, names, strict=True))
    loads = "".join(f"const {k} {n} = {n}s[i]; " for k, n in zip(kinds, names, strict=True))
    value = re.sub(r"\b(\w+f)\(", r"__builtin_\1(", problem.epilogue.expression)
    return (
        f'extern "C" void epilogue{number}(long count, const {x} *xs, double *out{params}) {{\n'
        f"  for (long i = 0; i < count; ++i) {{ const {x} x = xs[i]; {loads}out[i] = {value}; }}\n"
        "}\n"
    )


def _kinds(epilogue: Epilogue) -> list[str]:
    reads = ["float" if reference.is_float(r.dtype) else "int" for r in epilogue.reads]
    return reads + ["int"] * len(epilogue.places)


def _function(symbol: Any, problem: GemmProblem) -> Function:
    dtypes = [np.float32 if k == "float" else np.int32 for k in _kinds(problem.epilogue)]

    def run(sums: Array, reads: Sequence[Array]) -> Array:
        pairs = zip(reads, dtypes, strict=True)
        inputs = [np.ascontiguousarray(read.astype(dtype)) for read, dtype in pairs]
        sums, out = np.ascontiguousarray(sums), np.empty(sums.shape)
        pointers = [ctypes.c_void_p(x.ctypes.data) for x in (sums, out, *inputs)]
        symbol(ctypes.c_long(sums.size), *pointers)
        return out

    return run
