"""C++ of what becomes of sums: the epilogue's expression, its reads, and stores of the result."""

from __future__ import annotations

from felix.templates.gemm import indexing
from felix.templates.gemm.hopper import dtypes
from felix.templates.gemm.hopper.design import Sink
from felix.templates.gemm.problem import Output, Read

_ARITHMETIC = {"int32": "int", "int8": "int"}
#: Vector types of two elements, by the bytes of one.
_PAIRS = {1: "u16", 2: "u32", 4: "u64"}
_INT_LIMIT = 2**31


def parameters(sink: Sink) -> str:
    """The kernel's parameters for the epilogue's reads, with a comma before each."""
    return "".join(
        f", const {dtypes.STORAGE[read.dtype]}* __restrict__ {read.name}"
        for read in sink.epilogue.reads
    )


def arguments(sink: Sink) -> str:
    """The value of type `Reads` of a kernel with these parameters."""
    return "Reads{" + ", ".join(read.name for read in sink.epilogue.reads) + "}"


def functions(sink: Sink, accumulator: str, m: int, n: int) -> str:
    """`finish_one`, `finish_pair`, `store_one` and `store_pair` of a kernel's sums.

    `finish_*` give what is stored of the sums of one or two neighbouring columns, which lie in C;
    `store_*` store it. Element (batch, row, column) of C may be out of bounds for `store_*`.
    """
    reads, places = sink.epilogue.reads, sink.epilogue.places
    at, at_next = (
        "".join(f", {indexing.place(place, column=column)}" for place in places)
        for column in ("column", "(column + 1)")
    )
    fields = "".join(f"  const {dtypes.STORAGE[read.dtype]}* {read.name};\n" for read in reads)
    names = {
        "sum": dtypes.ACCUMULATOR[accumulator],
        "out": dtypes.STORAGE[sink.output.dtype],
        "expression": sink.epilogue.expression,
        "narrow": dtypes.NARROW[sink.output.dtype].format("value"),
        "typed": "".join(f", {_kind(read)} {read.name}" for read in reads)
        + "".join(f", int {place.name}" for place in places),
        "loads": "".join(f", {_load(read, sink)}" for read in reads) + at,
        "pair_loads": "".join(_pair_load(read, sink, m, n) for read in reads),
        "first": "".join(f", {read.name}_0" for read in reads) + at,
        "second": "".join(f", {read.name}_1" for read in reads) + at_next,
        "m": m,
        "n": n,
        "offset": _offset(sink.output, sink),
        "next": sink.output.strides[2],
        "stores": _pair_store(sink, m, n),
        "index": _index_type(sink, m, n),
    }
    return _text(names, fields)


def _text(names: dict[str, object], fields: str) -> str:
    body = """
typedef {index} Index;
typedef {sum} Sum;
typedef {out} Out;
struct Reads {{
{fields}}};
__device__ __forceinline__ Out finish(Sum x{typed}) {{
  const auto value = {expression};
  return {narrow};
}}
__device__ __forceinline__ Out finish_one(const Reads& reads, int batch, int row, int column,
                                          Sum x) {{
  return finish(x{loads});
}}
__device__ __forceinline__ void finish_pair(const Reads& reads, int batch, int row, int column,
                                            Sum x0, Sum x1, Out& y0, Out& y1) {{
{pair_loads}  y0 = finish(x0{first});
  y1 = finish(x1{second});
}}
__device__ __forceinline__ void store_one(Out* __restrict__ output, const Reads& reads,
                                          int batch, int row, int column, Sum x) {{
  if (row >= {m} || column >= {n}) return;
  output[{offset}] = finish_one(reads, batch, row, column, x);
}}
__device__ __forceinline__ void store_pair(Out* __restrict__ output, const Reads& reads,
                                           int batch, int row, int column, Sum x0, Sum x1) {{
  if (row >= {m} || column >= {n}) return;
  Out* const to = output + {offset};
  Out y0, y1;
  finish_pair(reads, batch, row, column, x0, x1, y0, y1);
{stores}}}
"""
    return body.format(fields=fields, **names)


def _kind(read: Read) -> str:
    """The type of a read in arithmetic."""
    return _ARITHMETIC.get(read.dtype, "float")


def _offset(tensor: Output | Read, sink: Sink, column: str = "column") -> str:
    """The index of an element."""
    return indexing.offset(tensor, sink.inner_batch, column=column, wide="Index({})")


def _load(read: Read, sink: Sink, column: str = "column") -> str:
    element = f"reads.{read.name}[{_offset(read, sink, column)}]"
    return dtypes.WIDEN[read.dtype].format(element)


def _pair_load(read: Read, sink: Sink, m: int, n: int) -> str:
    """Both values of a read for columns `column` and `column + 1`; in vectors where possible."""
    kind, name = _kind(read), read.name
    if read.strides[2] == 0 and n > 1:
        first = f"  const {kind} {name}_0 = {_load(read, sink)};\n"
        return first + f"  const {kind} {name}_1 = {name}_0;\n"
    if _are_pairs_aligned(read, sink, m, n):
        size = dtypes.size_bytes(read.dtype)
        storage = dtypes.STORAGE[read.dtype]
        low, high = (dtypes.WIDEN[read.dtype].format(f"{name}_both.values[{i}]") for i in (0, 1))
        return (
            f"  union {{ {_PAIRS[size]} vector; {storage} values[2]; }} {name}_both;\n"
            f"  {name}_both.vector = *reinterpret_cast<const {_PAIRS[size]}*>(reads.{name} + "
            f"{_offset(read, sink)});\n"
            f"  const {kind} {name}_0 = {low}, {name}_1 = {high};\n"
        )
    last = "column + 1" if n % 2 == 0 else f"min(column + 1, {n - 1})"
    return (
        f"  const {kind} {name}_0 = {_load(read, sink)};\n"
        f"  const {kind} {name}_1 = {_load(read, sink, f'({last})')};\n"
    )


def _pair_store(sink: Sink, m: int, n: int) -> str:
    output = sink.output
    if _are_pairs_aligned(output, sink, m, n):
        pair = _PAIRS[dtypes.size_bytes(output.dtype)]
        storage = dtypes.STORAGE[output.dtype]
        return (
            f"  union {{ {pair} vector; {storage} values[2]; }} both;\n"
            "  both.values[0] = y0;\n  both.values[1] = y1;\n"
            f"  *reinterpret_cast<{pair}*>(to) = both.vector;\n"
        )
    guard = "" if n % 2 == 0 else f"if (column + 1 < {n}) "
    return f"  *to = y0;\n  {guard}to[{output.strides[2]}] = y1;\n"


def _are_pairs_aligned(tensor: Output | Read, sink: Sink, m: int, n: int) -> bool:
    is_narrow = dtypes.size_bytes(tensor.dtype) in _PAIRS
    return is_narrow and indexing.are_pairs_aligned(tensor, sink.batches, m, n)


def _index_type(sink: Sink, m: int, n: int) -> str:
    """The narrowest type that indexes every tensor of the epilogue."""
    inner = sink.inner_batch or sink.batches
    extents = sink.batches // inner, inner, m, n
    tensors: tuple[Output | Read, ...] = (sink.output, *sink.epilogue.reads)
    largest = max(
        tensor.offset
        + sum(
            stride * extent
            for stride, extent in zip((tensor.outer_stride, *tensor.strides), extents, strict=True)
        )
        for tensor in tensors
    )
    return "int" if largest < _INT_LIMIT else "long long"
