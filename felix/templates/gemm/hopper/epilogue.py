"""C++ of what becomes of sums: the epilogue's expression, its reads, and how a warpgroup stores
the result: from registers, through shared memory by TMA, or after a reduction within the cluster.

Sum i of a thread is at row 16·warp + lane/4 + 8·(i/2 mod 2) and column 8·(i/4) + 2·(lane mod 4)
+ i mod 2 of its 64-row subtile (PTX ISA, "Register fragments for wgmma").
"""

from __future__ import annotations

from felix.templates.gemm import indexing
from felix.templates.gemm.ampere import epilogue as ampere
from felix.templates.gemm.ampere.instructions import arithmetic
from felix.templates.gemm.hopper import design as designs
from felix.templates.gemm.hopper import instructions
from felix.templates.gemm.hopper.design import Design, Sink
from felix.templates.gemm.problem import Output, Read
from felix.tir import grammar

_INT_LIMIT = 2**31


def parameters(sink: Sink) -> str:
    """The kernel's parameters for the epilogue's reads, with a comma before each."""
    return "".join(
        f", const {instructions.STORAGE[read.dtype].c_type}* __restrict__ {read.name}"
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
    stored = instructions.STORAGE
    called, finishing = ampere.finishing("finish", sink.epilogue, sink.output.dtype, stored)
    return called + _FUNCTIONS.format(
        index=_index_type(sink, m, n),
        sum=instructions.ACCUMULATOR[accumulator],
        finishing=finishing,
        loads="".join(f", {_load(read, sink)}" for read in reads) + at,
        pair_loads="".join(_pair_load(read, sink, m, n) for read in reads),
        first="".join(f", {read.name}_0" for read in reads) + at,
        second="".join(f", {read.name}_1" for read in reads) + at_next,
        m=m,
        n=n,
        offset=_offset(sink.output, sink),
        stores=_pair_store(sink, m, n),
    )


_FUNCTIONS = """
typedef {index} Index;
typedef {sum} Sum;
{finishing}\
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


def _offset(tensor: Output | Read, sink: Sink, column: str = "column") -> str:
    """The index of an element."""
    return indexing.offset(tensor, sink.inner_batch, column=column, wide="Index({})")


def _load(read: Read, sink: Sink, column: str = "column") -> str:
    element = f"reads.{read.name}[{_offset(read, sink, column)}]"
    return instructions.STORAGE[read.dtype].widen.format(element)


def _pair_load(read: Read, sink: Sink, m: int, n: int) -> str:
    """Both values of a read for columns `column` and `column + 1`; in vectors where possible."""
    kind, name = arithmetic(read.dtype), read.name
    if read.strides[2] == 0 and n > 1:
        first = f"  const {kind} {name}_0 = {_load(read, sink)};\n"
        return first + f"  const {kind} {name}_1 = {name}_0;\n"
    if indexing.are_aligned(read, sink.batches, m, n, 2):
        at = f"reads.{name} + {_offset(read, sink)}"
        return ampere.load_of_pair(read, instructions.STORAGE[read.dtype], at)
    last = "column + 1" if n % 2 == 0 else f"min(column + 1, {n - 1})"
    return (
        f"  const {kind} {name}_0 = {_load(read, sink)};\n"
        f"  const {kind} {name}_1 = {_load(read, sink, f'({last})')};\n"
    )


def _pair_store(sink: Sink, m: int, n: int) -> str:
    output = sink.output
    if indexing.are_aligned(output, sink.batches, m, n, 2):
        return ampere.store_of_pair(instructions.STORAGE[output.dtype])
    guard = "" if n % 2 == 0 else f"if (column + 1 < {n}) "
    return f"  *to = y0;\n  {guard}to[{output.strides[2]}] = y1;\n"


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


_PLACES = """
__device__ __forceinline__ int row_in_subtile(int i) {
  return threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4 + i / 2 % 2 * 8;
}
__device__ __forceinline__ int column_in_tile(int i) {
  return i / 4 * 8 + threadIdx.x % 4 * 2;
}
"""

#: Sums are stored where they are: neighbours of a row in pairs.
_FROM_REGISTERS = """
__device__ __forceinline__ void store_tile(Out* output, const Reads& reads,
                                           Sum (&sums)[SUBTILES][SUMS], const Tile& tile, int line,
                                           u32 memory, int rank, int warpgroup) {
  const int batch = tile.batch + (CLUSTER_K > 1 ? 0 : tile.part) * BATCH;
  #pragma unroll
  for (int subtile = 0; subtile < SUBTILES; ++subtile) {
    #pragma unroll
    for (int i = 0; i < SUMS; i += 2) {
      const int row = tile.row + line + subtile * 64 + row_in_subtile(i);
      store_pair(output, reads, batch, row, tile.column + column_in_tile(i),
                 sums[subtile][i], sums[subtile][i + 1]);
    }
  }
}
"""

#: Each block of the cluster has a part of all sums. They are laid out in shared memory, where the
#: ring was, as [pair][thread]; block r adds up and stores pairs r, r + CLUSTER_K, ...
_IN_CLUSTER = """
struct Pair { Sum first, second; };
__device__ __forceinline__ Pair load_pair(u32 address) {
  Pair pair;
  asm volatile("ld.shared::cluster.v2.@type@ {%0, %1}, [%2];"
               : "=@letter@"(pair.first), "=@letter@"(pair.second) : "r"(address) : "memory");
  return pair;
}
__device__ __forceinline__ void store_tile(Out* output, const Reads& reads,
                                           Sum (&sums)[SUBTILES][SUMS], const Tile& tile, int line,
                                           u32 memory, int rank, int warpgroup) {
  const int thread = threadIdx.x - 128;
  threads_sync(1, CONSUMERS * 128);  // no warpgroup reads the ring any more
  #pragma unroll
  for (int subtile = 0; subtile < SUBTILES; ++subtile) {
    #pragma unroll
    for (int i = 0; i < SUMS; i += 2) {
      const int pair = (subtile * SUMS + i) / 2;
      asm volatile("st.shared.v2.@type@ [%0], {%1, %2};"
                   :: "r"(memory + (pair * CONSUMERS * 128 + thread) * 8),
                      "@letter@"(sums[subtile][i]), "@letter@"(sums[subtile][i + 1]) : "memory");
    }
  }
  cluster_sync();
  #pragma unroll 4
  for (int pair = rank; pair < SUBTILES * SUMS / 2; pair += CLUSTER_K) {
    const u32 address = memory + (pair * CONSUMERS * 128 + thread) * 8;
    Pair parts[CLUSTER_K];
    #pragma unroll
    for (int block = 0; block < CLUSTER_K; ++block)
      parts[block] = load_pair(address_in_block(address, block));
    Sum x0 = 0, x1 = 0;
    #pragma unroll
    for (int block = 0; block < CLUSTER_K; ++block) {
      x0 += parts[block].first;
      x1 += parts[block].second;
    }
    const int subtile = 2 * pair / SUMS, i = 2 * pair % SUMS;
    const int row = tile.row + line + subtile * 64 + row_in_subtile(i);
    store_pair(output, reads, tile.batch, row, tile.column + column_in_tile(i), x0, x1);
  }
}
"""

#: A warpgroup fills one of its buffers while TMA reads the other.
_BY_TMA = """
__device__ __forceinline__ u32 swizzled(u32 offset) {
  return offset ^ (offset >> 7 & STORE_WIDTH / 16 - 1) << 4;
}
// Two neighbouring columns of a row, as they lie in a buffer of a warpgroup.
__device__ __forceinline__ void fill_pair(u8* buffer, int row, int column, Out y0, Out y1) {
  constexpr int SIZE = sizeof(Out);
  if (STORE_BY_ROWS) {
    union { @pair@ vector; Out values[2]; } both;
    both.values[0] = y0;
    both.values[1] = y1;
    *reinterpret_cast<@pair@*>(buffer + swizzled(row * STORE_WIDTH + column * SIZE)) = both.vector;
  } else {
    const int panel = row * SIZE / 128 * STORE_COLUMNS * 128, inside = row * SIZE % 128;
    *reinterpret_cast<Out*>(buffer + swizzled(panel + column * 128 + inside)) = y0;
    *reinterpret_cast<Out*>(buffer + swizzled(panel + column * 128 + 128 + inside)) = y1;
  }
}
__device__ __forceinline__ void copy_buffer(const TensorMap& output, u32 buffer, int row,
                                            int column, int batch) {
  #pragma unroll
  for (int panel = 0; panel < STORE_PANELS; ++panel) {
    const int inner = row + panel * (64 / STORE_PANELS);
    copy_out(output, buffer + panel * STORE_COLUMNS * 128, STORE_BY_ROWS ? column : inner,
             STORE_BY_ROWS ? inner : column, @batch@);
  }
  copies_out_commit();
}
__device__ __forceinline__ void store_tile(const TensorMap& output, const Reads& reads,
                                           Sum (&sums)[SUBTILES][SUMS], const Tile& tile, int line,
                                           u32 memory, int rank, int warpgroup) {
  extern __shared__ __align__(1024) u8 shared_memory[];
  const bool is_leader = threadIdx.x % 128 == 0;
  const int batch = tile.batch + tile.part * BATCH;
  #pragma unroll
  for (int subtile = 0; subtile < SUBTILES; ++subtile) {
    #pragma unroll
    for (int chunk = 0; chunk < STORE_CHUNKS; ++chunk) {
      const int row = tile.row + line + subtile * 64, column = tile.column + chunk * STORE_COLUMNS;
      const int buffer = subtile * STORE_CHUNKS + chunk;
      const int offset = STORE_OFFSET + (warpgroup * 2 + buffer % 2) * STORE_BUFFER_BYTES;
      if (is_leader) {
        // With an odd number of chunks the last tile's last buffer is this tile's first.
        if (buffer == 0 && SUBTILES * STORE_CHUNKS % 2) copies_out_wait<0>();
        else copies_out_wait<1>();
      }
      threads_sync(1 + warpgroup, 128);
      #pragma unroll
      for (int i = 0; i < STORE_COLUMNS / 2; i += 2) {
        const int local_row = row_in_subtile(i), local_column = column_in_tile(i);
        const int sum = chunk * (STORE_COLUMNS / 2) + i;
        Out y0 = 0, y1 = 0;
        if (!HAS_READS || row + local_row < @m@ && column + local_column < @n@)
          finish_pair(reads, tile.batch, row + local_row, column + local_column,
                      sums[subtile][sum], sums[subtile][sum + 1], y0, y1);
        fill_pair(shared_memory + offset, local_row, local_column, y0, y1);
      }
      shared_writes_visible_to_copies();
      threads_sync(1 + warpgroup, 128);
      if (is_leader) copy_buffer(output, memory + offset, row, column, batch);
    }
  }
}
"""


def source(design: Design) -> str:
    """`store_tile` of a design."""
    d, is_float = design.d, design.problem.accumulator == "float32"
    if d.cluster_k > 1:
        text = _IN_CLUSTER.replace("@type@", "f32" if is_float else "s32")
        return _PLACES + text.replace("@letter@", "f" if is_float else "r")
    return _PLACES + (_by_tma(design) if d.tma_store > 1 else _FROM_REGISTERS)


def _by_tma(design: Design) -> str:
    sink, problem = design.sink, design.problem
    tile = designs.store_tile(sink, design.d.block_n)
    size = grammar.element_bytes(sink.output.dtype)
    values = {
        "STORE_COLUMNS": tile.columns,
        "STORE_CHUNKS": design.d.block_n // tile.columns,
        "STORE_WIDTH": tile.width,
        "STORE_PANELS": tile.panels,
        "STORE_BY_ROWS": int(sink.output.is_row_major),
        "STORE_BUFFER_BYTES": designs.STORE_BUFFER_BYTES,
        "HAS_READS": int(bool(sink.epilogue.reads)),
    }
    text = indexing.constants(values)
    axis = sink.inner_batch
    batch = "batch" if axis is None else f"batch % {axis}, batch / {axis}"
    replaced = {"batch": batch, "pair": {2: "u32", 4: "u64"}[size], "m": problem.m, "n": problem.n}
    body = _BY_TMA
    for name, value in replaced.items():
        body = body.replace(f"@{name}@", str(value))
    return text + body
