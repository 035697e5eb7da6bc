"""The kernels before and after the product's: packing operands, adding partial sums."""

from __future__ import annotations

from collections.abc import Sequence

from felix.launch_plan import Launch
from felix.templates.gemm.hopper import design as designs
from felix.templates.gemm.hopper import epilogue, instructions, layout
from felix.templates.gemm.hopper.design import Design, Pack
from felix.templates.gemm.problem import GemmProblem
from felix.tir import grammar

THREADS = 256

_PACK_MATRIX = """
// Copies 16 bytes of a matrix [batch][outer][inner] to rows that begin at multiples of 16 bytes;
// what lies behind a row's end is never read. Neighbouring threads read neighbours in memory.
__device__ __forceinline__ void {name}(int index, const {storage}* __restrict__ from,
                                       {storage}* __restrict__ to) {{
  union {{ ulonglong2 vector; {storage} values[{n}]; }} both;
  const int x = {vector} * {n}, row = {row};
  if (index >= {total}) return;
  const {storage}* const source = from + {start}
      + {line} + x * {inner_stride}ll;
  #pragma unroll
  for (int i = 0; i < {n}; ++i)
    both.values[i] = x + i < {inner} ? source[i * {inner_stride}ll] : static_cast<{storage}>(0);
  *reinterpret_cast<ulonglong2*>(to + row * {stride}ll + x) = both.vector;
}}
"""
_PACK = """
extern "C" __global__ void __launch_bounds__({threads}) pack({parameters}) {{
  int block = blockIdx.x;
{calls}}}
"""


def pack_blocks(pack: Pack) -> int:
    """That copy an operand, 16 bytes a thread."""
    return -(-layout.packed_bytes(pack.copy) // (layout.ALIGNMENT * THREADS))


def pack_source(operands: Sequence[Pack]) -> str:
    """The kernel that packs operands, one after the other."""
    storage = instructions.STORAGE[operands[0].source.dtype].c_type
    parameters, calls = [], []
    for pack in operands:
        operand = pack.name.removeprefix("pack_")
        parameters.append(f"const {storage}* {operand}, {storage}* {operand}_copy")
        call = f"{pack.name}(block * {THREADS} + threadIdx.x, {operand}, {operand}_copy)"
        blocks = pack_blocks(pack)
        calls.append(f"  if (block < {blocks}) return {call};\n  block -= {blocks};\n")
    kernel = _PACK.format(threads=THREADS, parameters=", ".join(parameters), calls="".join(calls))
    return "".join(map(_pack_matrix, operands)) + kernel


def _pack_matrix(pack: Pack) -> str:
    source, copy = pack.source, pack.copy
    n = layout.ALIGNMENT // grammar.element_bytes(source.dtype)
    rows = copy.batches.matrices * copy.outer
    vectors = copy.outer_stride // n
    along_rows = source.inner_stride == 1
    return _PACK_MATRIX.format(
        name=pack.name,
        vector=f"index % {vectors}" if along_rows else f"index / {rows}",
        row=f"index / {vectors}" if along_rows else f"index % {rows}",
        total=rows * vectors,
        inner_stride=source.inner_stride,
        storage=instructions.STORAGE[source.dtype].c_type,
        n=n,
        inner=copy.inner,
        start=_matrix_start(source),
        line=_line_start(source),
        stride=copy.outer_stride,
    )


def _line_start(source: layout.Matrix) -> str:
    """Where the line of a matrix begins that a row of the copy has."""
    line = f"row % {source.outer}"
    if source.outer_split is None:
        return f"{line} * {source.outer_stride}ll"
    extent, stride = source.outer_split
    return f"{line} % {extent} * {source.outer_stride}ll + {line} / {extent} * {stride}ll"


def _matrix_start(source: layout.Matrix) -> str:
    """The index of the first element of the matrix that a row of the copy belongs to."""
    batches, matrix = source.batches, f"row / {source.outer}"
    if not batches.outer_stride:
        return f"{matrix} * {batches.stride}ll + {source.offset}"
    return (
        f"{matrix} % {batches.inner_matrices} * {batches.stride}ll"
        f" + {matrix} / {batches.inner_matrices} * {batches.outer_stride}ll + {source.offset}"
    )


def pack_launch(operands: Sequence[Pack]) -> Launch:
    """How the kernel that packs operands is launched."""
    blocks = sum(map(pack_blocks, operands))
    args = [number for pack in operands for number in (pack.source.tensor, pack.copy.tensor)]
    return Launch("pack", (blocks, 1, 1, THREADS, 1, 1), 0, tuple(args))


_REDUCE = """
extern "C" __global__ void __launch_bounds__({threads})
reduce(const Sum* __restrict__ partial, Out* __restrict__ output{parameters}) {{
  const Reads reads = {reads};
  const int index = blockIdx.x * {threads} + threadIdx.x;
  const int inner = index % {vectors} * {n}, outer = index / {vectors} % {outer};
  const int batch = index / {vectors} / {outer};
  if (batch >= {batches}) return;
  const Sum* from = partial + (batch * {outer}ll + outer) * {stride}ll + inner;
  union {{ ulonglong2 vector; Sum values[{n}]; }} part, total;
  #pragma unroll
  for (int i = 0; i < {n}; ++i) total.values[i] = 0;
  #pragma unroll {unroll}
  for (int split = 0; split < {parts}; ++split) {{
    part.vector = *reinterpret_cast<const ulonglong2*>(from + split * {part_stride}ll);
    #pragma unroll
    for (int i = 0; i < {n}; ++i) total.values[i] += part.values[i];
  }}
{stores}}}
"""
_STORES_BY_ROWS = """\
  #pragma unroll
  for (int i = 0; i < {n}; i += 2)
    store_pair(output, reads, batch, outer, inner + i, total.values[i], total.values[i + 1]);
"""
_STORES_BY_COLUMNS = """\
  #pragma unroll
  for (int i = 0; i < {n}; ++i)
    store_one(output, reads, batch, inner + i, outer, total.values[i]);
"""
_MOST_UNROLLED = 8


def reduce_source(design: Design) -> str:
    """The kernel that adds partial sums and applies the epilogue, in a namespace of its own."""
    problem, final, partial = design.problem, design.final, designs.PartialSums(design.problem)
    n = designs.REDUCED_ELEMENTS
    body = _REDUCE.format(
        threads=THREADS,
        parameters=epilogue.parameters(final),
        reads=epilogue.arguments(final),
        vectors=partial.pitch // n,
        n=n,
        outer=partial.outer,
        batches=problem.batch,
        stride=partial.pitch,
        parts=design.d.split_k,
        unroll=min(int(design.d.split_k), _MOST_UNROLLED),
        part_stride=partial.elements,
        stores=(_STORES_BY_ROWS if partial.is_row_major else _STORES_BY_COLUMNS).format(n=n),
    )
    functions = epilogue.functions(final, problem.accumulator, problem.m, problem.n)
    return "namespace reduction {\n" + functions + body + "}\n"


def reduce_blocks(problem: GemmProblem) -> int:
    """Of the reduction."""
    return -(-designs.PartialSums(problem).elements // (designs.REDUCED_ELEMENTS * THREADS))


def reduce_launch(design: Design) -> Launch:
    """How the reduction is launched."""
    final = design.final
    blocks = reduce_blocks(design.problem)
    reads = (read.param for read in final.epilogue.reads)
    args = (design.partial.output.param, final.output.param, *reads)
    return Launch("reduce", (blocks, 1, 1, THREADS, 1, 1), 0, args)
