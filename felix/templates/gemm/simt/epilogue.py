"""C++ that stores four neighbours of the result, after the functions of `ampere.epilogue`."""

from __future__ import annotations

from felix.templates.gemm import indexing
from felix.templates.gemm.ampere import dtypes, epilogue
from felix.templates.gemm.problem import GemmProblem, Read

_VECTORS = {1: "u32", 2: "u64", 4: "uint4"}
_SIGNATURE = """\
// Stores what becomes of the sums of columns `column`, a multiple of 4, to `column + 3`.
__device__ __forceinline__ void store_four(Out* __restrict__ output, const Reads& reads,
                                           long long batch, long long row, long long column,
                                           float x0, float x1, float x2, float x3) {{
{body}}}
"""
_BY_PAIRS = """\
  store_pair(output, reads, batch, row, column, x0, x1);
  store_pair(output, reads, batch, row, column + 2, x2, x3);
"""
_WHOLE = """\
  if (row >= M || column >= N) return;
{loads}  union {{ {vector} whole; Out values[4]; }} result;
{values}  *reinterpret_cast<{vector}*>(output + {offset}) = result.whole;
"""


def functions(problem: GemmProblem) -> str:
    """`Reads`, `Out`, `store_pair` and `store_four` of the problem."""
    output = problem.output
    is_whole = indexing.are_aligned(output, problem.batch, problem.m, problem.n, 4)
    body = _whole(problem) if is_whole else _BY_PAIRS
    return epilogue.functions(problem) + _SIGNATURE.format(body=body)


def _whole(problem: GemmProblem) -> str:
    """Of a result that is stored in vectors, so all four columns are inside."""
    reads, places = problem.epilogue.reads, problem.epilogue.places
    values = ""
    for i in range(4):
        names = "".join(f", {read.name}_{i}" for read in reads)
        names += "".join(f", {indexing.place(p, column=f'(column + {i})')}" for p in places)
        values += f"  result.values[{i}] = finished(x{i}{names});\n"
    size = dtypes.STORAGE[problem.output.dtype].size_bytes
    return _WHOLE.format(
        loads="".join(_loads(read, problem) for read in reads),
        vector=_VECTORS[size],
        values=values,
        offset=indexing.offset(problem.output, problem.inner_batch),
    )


def _loads(read: Read, problem: GemmProblem) -> str:
    """The values of a read for four columns; as one vector where they are one."""
    kind, name, storage = dtypes.arithmetic(read.dtype), read.name, dtypes.STORAGE[read.dtype]
    at = [indexing.offset(read, problem.inner_batch, column=f"(column + {i})") for i in range(4)]
    elements = [f"reads.{name}[{each}]" for each in at]
    text = ""
    if indexing.are_aligned(read, problem.batch, problem.m, problem.n, 4):
        vector = _VECTORS[storage.size_bytes]
        first = f"reads.{name} + {indexing.offset(read, problem.inner_batch)}"
        text = f"  union {{ {vector} whole; {storage.c_type} values[4]; }} {name}_all;\n"
        text += f"  {name}_all.whole = *reinterpret_cast<const {vector}*>({first});\n"
        elements = [f"{name}_all.values[{i}]" for i in range(4)]
    for i, element in enumerate(elements):
        same = f"{name}_0" if i and not read.strides[2] else storage.widen.format(element)
        text += f"  const {kind} {name}_{i} = {same};\n"
    return text
