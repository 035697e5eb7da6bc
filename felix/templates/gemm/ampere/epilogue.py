"""C++ of what becomes of sums: the epilogue's expression, its reads, and stores of the result."""

from __future__ import annotations

from collections.abc import Mapping

from felix.templates.gemm import epilogue, indexing
from felix.templates.gemm.ampere import instructions
from felix.templates.gemm.ampere.instructions import Storage
from felix.templates.gemm.problem import Epilogue, GemmProblem, Output, Read

_PAIRS = {1: "u16", 2: "u32", 4: "u64"}


def filled(problem: GemmProblem, text: str) -> str:
    """A text of kernels with their parameters for the epilogue's reads, and these as `Reads`."""
    reads = problem.epilogue.reads
    types = [(instructions.STORAGE[read.dtype].c_type, read.name) for read in reads]
    typed = "".join(f", const {c_type}* __restrict__ {name}_data" for c_type, name in types)
    names = ", ".join(f"{read.name}_data" for read in reads)
    text = text.replace("READ_PARAMETERS", typed)
    return text.replace("READ_ARGUMENTS", f"Reads{{{names}}}")


_FINISHED = """\
typedef {c_type} Out;
struct Reads {{
{fields}}};
__device__ __forceinline__ Out {name}(Sum x{typed}) {{
  const auto value = {expression};
  return {narrow};
}}
"""
_PAIR = """\
// Stores what becomes of the sums of columns `column` (even) and `column + 1`, those inside of C.
__device__ __forceinline__ void store_pair(Out* __restrict__ output, const Reads& reads,
                                           long long batch, long long row, long long column,
                                           Sum x0, Sum x1) {{
  if (row >= M || column >= N) return;
{pixel}{loads}  const Out y0 = finished(x0{first}), y1 = finished(x1{second});
  Out* const to = output + {offset};
{stores}}}
"""
_ONE = """\
__device__ __forceinline__ void store_one(Out* __restrict__ output, const Reads& reads,
                                          long long batch, long long row, long long column,
                                          Sum x) {{
{before}{loads}  output[{offset}] = finished(x{values});
}}
"""
_INSIDE = "// Stores what becomes of the sum of a row and a column inside of C.\n"
#: Where columns are pixels by phases, two that follow are no neighbours in memory.
_APART = """\
__device__ __forceinline__ void store_pair(Out* __restrict__ output, const Reads& reads,
                                           long long batch, long long row, long long column,
                                           Sum x0, Sum x1) {
  store_one(output, reads, batch, row, column, x0);
  store_one(output, reads, batch, row, column + 1, x1);
}
"""


def functions(problem: GemmProblem) -> str:
    """`Reads`, `Out` and `store_pair` of the problem."""
    if problem.phases is None or problem.phases.pixels == 1:
        return _finished(problem) + _pairs(problem)
    before = f"  if (row >= M || column >= N) return;\n{indexing.pixel_of(problem)}"
    return _finished(problem) + _one(problem, before) + _APART


def functions_of_one(problem: GemmProblem) -> str:
    """`Reads`, `Out` and `store_one` of a problem without phases."""
    return _finished(problem) + _INSIDE + _one(problem)


def _one(problem: GemmProblem, before: str = "") -> str:
    return _ONE.format(
        before=before,
        loads="".join(_load(read, problem) for read in problem.epilogue.reads),
        offset=_offset(problem.output, problem),
        values=_arguments(problem),
    )


def _arguments(problem: GemmProblem, number: int = 0, column: str = "column") -> str:
    """What `finished` takes beside the sum, of a column: values of reads and of places."""
    names = [f"{read.name}_{number}" for read in problem.epilogue.reads]
    names += [indexing.place(place, column=column) for place in problem.epilogue.places]
    return "".join(f", {name}" for name in names)


def _finished(problem: GemmProblem) -> str:
    dtype, stored = problem.output.dtype, instructions.STORAGE
    return "\n".join(finishing("finished", problem.epilogue, dtype, stored))


def finishing(
    name: str, of: Epilogue, dtype: str, stored: Mapping[str, Storage]
) -> tuple[str, str]:
    """What an epilogue calls; and `Out`, `Reads`, and the function of a sum, reads and places.

    Args:
        name: of the function.
        dtype: of the output.
        stored: types in memory, by dtype.
    """
    called, expression = epilogue.in_device_code(of.expression)
    typed = [f", {instructions.arithmetic(read.dtype)} {read.name}" for read in of.reads]
    typed += [f", int {place.name}" for place in of.places]
    fields = (f"  const {stored[read.dtype].c_type}* {read.name};\n" for read in of.reads)
    return called, _FINISHED.format(
        name=name,
        c_type=stored[dtype].c_type,
        fields="".join(fields),
        typed="".join(typed),
        expression=expression,
        narrow=stored[dtype].narrow.format("value"),
    )


def _pairs(problem: GemmProblem) -> str:
    return _PAIR.format(
        pixel=indexing.pixel_of(problem) if problem.phases else "",
        loads="".join(_pair_load(read, problem) for read in problem.epilogue.reads),
        first=_arguments(problem),
        second=_arguments(problem, 1, "(column + 1)"),
        offset=_offset(problem.output, problem),
        stores=_pair_store(problem),
    )


def _offset(tensor: Output | Read, problem: GemmProblem, column: str = "column") -> str:
    """The index of an element in its tensor."""
    of_axes = indexing.offset(tensor, problem.inner_batch, column=column)
    return of_axes + (indexing.pixel_offset(tensor, problem) if problem.phases else "")


def _load(read: Read, problem: GemmProblem) -> str:
    """The value of a read for the first column."""
    kind, storage = instructions.arithmetic(read.dtype), instructions.STORAGE[read.dtype]
    at = f"*(reads.{read.name} + {_offset(read, problem)})"
    return f"  const {kind} {read.name}_0 = {storage.widen.format(at)};\n"


def _pair_load(read: Read, problem: GemmProblem) -> str:
    """Both values of a read for two columns; as one vector where they are one."""
    kind, storage = instructions.arithmetic(read.dtype), instructions.STORAGE[read.dtype]
    name = read.name
    at = f"reads.{name} + {_offset(read, problem)}"
    if _are_pairs_aligned(read, problem):
        return load_of_pair(read, storage, at)
    first = _load(read, problem)
    if read.strides[2] == 0 or problem.n == 1:
        return f"{first}  const {kind} {name}_1 = {name}_0;\n"
    beyond = f"column + 1 < N ? column + 1 : {problem.n - 1}"
    at_last = _offset(read, problem, column=f"({beyond})")
    last = f"reads.{name}[{at_last}]"
    return f"{first}  const {kind} {name}_1 = {storage.widen.format(last)};\n"


def load_of_pair(read: Read, stored: Storage, at: str) -> str:
    """Both values of a read at an address, as one vector."""
    kind, name, pair = instructions.arithmetic(read.dtype), read.name, _PAIRS[stored.size_bytes]
    low, high = (stored.widen.format(f"{name}_both.values[{i}]") for i in (0, 1))
    return (
        f"  union {{ {pair} vector; {stored.c_type} values[2]; }} {name}_both;\n"
        f"  {name}_both.vector = *reinterpret_cast<const {pair}*>({at});\n"
        f"  const {kind} {name}_0 = {low}, {name}_1 = {high};\n"
    )


def store_of_pair(stored: Storage) -> str:
    """Stores `y0` and `y1` at `to`, as one vector."""
    pair = _PAIRS[stored.size_bytes]
    return (
        f"  union {{ {pair} vector; {stored.c_type} values[2]; }} both;\n"
        "  both.values[0] = y0;\n  both.values[1] = y1;\n"
        f"  *reinterpret_cast<{pair}*>(to) = both.vector;\n"
    )


def _pair_store(problem: GemmProblem) -> str:
    output = problem.output
    storage = instructions.STORAGE[output.dtype]
    if _are_pairs_aligned(output, problem):
        return store_of_pair(storage)
    return f"  *to = y0;\n  if (column + 1 < N) to[{output.strides[2]}] = y1;\n"


def _are_pairs_aligned(tensor: Output | Read, problem: GemmProblem) -> bool:
    if problem.phases and any(stride % 2 for stride in indexing.strides_of(tensor, problem)):
        return False
    return indexing.are_aligned(tensor, problem.batch, problem.m, problem.n, 2)


_FOURS = {1: "u32", 2: "u64", 4: "uint4"}
_FOUR = """\
// Stores what becomes of the sums of columns `column`, a multiple of 4, to `column + 3`.
__device__ __forceinline__ void store_four(Out* __restrict__ output, const Reads& reads,
                                           long long batch, long long row, long long column,
                                           float x0, float x1, float x2, float x3) {{
{body}}}
"""
_FOUR_BY_PAIRS = """\
  store_pair(output, reads, batch, row, column, x0, x1);
  store_pair(output, reads, batch, row, column + 2, x2, x3);
"""
_FOUR_WHOLE = """\
  if (row >= M || column >= N) return;
{loads}  union {{ {vector} whole; Out values[4]; }} result;
{values}  *reinterpret_cast<{vector}*>(output + {offset}) = result.whole;
"""


def functions_of_four(problem: GemmProblem) -> str:
    """`Reads`, `Out`, `store_pair` and `store_four` of the problem."""
    output = problem.output
    is_whole = indexing.are_aligned(output, problem.batch, problem.m, problem.n, 4)
    body = _four_whole(problem) if is_whole else _FOUR_BY_PAIRS
    return functions(problem) + _FOUR.format(body=body)


def _four_whole(problem: GemmProblem) -> str:
    """Of a result that is stored in vectors, so all four columns are inside."""
    arguments = [_arguments(problem, i, f"(column + {i})") for i in range(4)]
    values = "".join(
        f"  result.values[{i}] = finished(x{i}{of_column});\n"
        for i, of_column in enumerate(arguments)
    )
    size = instructions.STORAGE[problem.output.dtype].size_bytes
    return _FOUR_WHOLE.format(
        loads="".join(_four_loads(read, problem) for read in problem.epilogue.reads),
        vector=_FOURS[size],
        values=values,
        offset=indexing.offset(problem.output, problem.inner_batch),
    )


def _four_loads(read: Read, problem: GemmProblem) -> str:
    """The values of a read for four columns; as one vector where they are one."""
    kind, storage = instructions.arithmetic(read.dtype), instructions.STORAGE[read.dtype]
    name = read.name
    at = [indexing.offset(read, problem.inner_batch, column=f"(column + {i})") for i in range(4)]
    elements = [f"reads.{name}[{each}]" for each in at]
    text = ""
    if indexing.are_aligned(read, problem.batch, problem.m, problem.n, 4):
        vector = _FOURS[storage.size_bytes]
        first = f"reads.{name} + {indexing.offset(read, problem.inner_batch)}"
        text = f"  union {{ {vector} whole; {storage.c_type} values[4]; }} {name}_all;\n"
        text += f"  {name}_all.whole = *reinterpret_cast<const {vector}*>({first});\n"
        elements = [f"{name}_all.values[{i}]" for i in range(4)]
    for i, element in enumerate(elements):
        same = f"{name}_0" if i and not read.strides[2] else storage.widen.format(element)
        text += f"  const {kind} {name}_{i} = {same};\n"
    return text
