"""How a warpgroup stores its sums: from registers, through shared memory by TMA, or after a
reduction within the cluster.

Sum i of a thread is at row 16·warp + lane/4 + 8·(i/2 mod 2) and column 8·(i/4) + 2·(lane mod 4)
+ i mod 2 of its 64-row subtile (PTX ISA, "Register fragments for wgmma").
"""

from __future__ import annotations

from felix.templates.gemm.hopper import design as designs
from felix.templates.gemm.hopper import dtypes
from felix.templates.gemm.hopper.design import Design

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
    size = dtypes.size_bytes(sink.output.dtype)
    values = {
        "STORE_COLUMNS": tile.columns,
        "STORE_CHUNKS": design.d.block_n // tile.columns,
        "STORE_WIDTH": tile.width,
        "STORE_PANELS": tile.panels,
        "STORE_BY_ROWS": int(sink.is_row_major),
        "STORE_BUFFER_BYTES": designs.STORE_BUFFER_BYTES,
        "HAS_READS": int(bool(sink.epilogue.reads)),
    }
    text = "".join(f"constexpr int {name} = {value};\n" for name, value in values.items())
    axis = sink.inner_batch
    batch = "batch" if axis is None else f"batch % {axis}, batch / {axis}"
    replaced = {"batch": batch, "pair": {2: "u32", 4: "u64"}[size], "m": problem.m, "n": problem.n}
    body = _BY_TMA
    for name, value in replaced.items():
        body = body.replace(f"@{name}@", str(value))
    return text + body
