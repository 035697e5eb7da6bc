"""The kernel of the product: a warpgroup that copies, and others that multiply and store.

The text of the device functions below is fixed; numbers are constants in front of it, and what
depends on types and strides (`multiply`, `store_pair`) is by `instructions` and `epilogue`.
"""

from __future__ import annotations

from felix.templates.gemm import indexing
from felix.templates.gemm.hopper import epilogue, instructions, layout
from felix.templates.gemm.hopper.convolution import copies
from felix.templates.gemm.hopper.design import Design

NAME = "gemm"

_SCHEDULE = """
struct Tile { int row, column, batch, part; };

// Units go down a group of GROUP_M rows, then to the next column; groups, batches, parts follow.
__device__ __forceinline__ Tile tile_of(int unit, int rank) {
  const int index = unit % (UNITS_M * UNITS_N), matrix = unit / (UNITS_M * UNITS_N);
  const int first = index / (GROUP_M * UNITS_N) * GROUP_M;
  const int height = UNITS_M % GROUP_M == 0 ? GROUP_M : min(UNITS_M - first, GROUP_M);
  const int inside = index - first * UNITS_N;
  Tile tile;
  tile.row = ((first + inside % height) * CLUSTER_M + rank % CLUSTER_M) * BLOCK_M;
  tile.column = (inside / height * CLUSTER_N + rank / CLUSTER_M % CLUSTER_N) * BLOCK_N;
  tile.batch = matrix % BATCH;
  tile.part = CLUSTER_K > 1 ? rank : matrix / BATCH;
  return tile;
}
__device__ __forceinline__ int first_step(int part) {
  return PARTS == 1 ? part * STEPS : static_cast<int>(1LL * part * STEPS / PARTS);
}
__device__ __forceinline__ int steps_of(int unit, int rank) {
  const int part = tile_of(unit, rank).part;
  return first_step(part + 1) - first_step(part);
}
"""

_RING = """
// Where a role is in the ring of stages. A stage's `full` barrier completes when its bytes are
// there, its `empty` barrier when all that read it have released it.
struct Ring {
  int stage = 0;
  u32 parity = 0;
  __device__ __forceinline__ void advance() {
    if (++stage == STAGES) { stage = 0; parity ^= 1; }
  }
  __device__ __forceinline__ void skip(int steps) {
    stage += steps;
    parity ^= stage / STAGES & 1;
    stage %= STAGES;
  }
};
__device__ __forceinline__ u32 full_barrier(u32 memory, int stage) {
  return memory + BARRIERS + 8 * stage;
}
__device__ __forceinline__ u32 empty_barrier(u32 memory, int stage) {
  return memory + BARRIERS + 8 * (STAGES + stage);
}
__device__ __forceinline__ void make_ring(u32 memory) {
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < STAGES; ++stage) {
      barrier_init(full_barrier(memory, stage), 1);
      barrier_init(empty_barrier(memory, stage), RELEASES);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async;" ::: "memory");
  }
  if (CLUSTER > 1) cluster_sync(); else __syncthreads();
}
"""

_COPY_SHARE = """
// Copies this block's share of a tile of A or B into a stage, of all blocks that need the tile.
template <class Operand> __device__ __forceinline__ void copy_share(
    const TensorMap& map, u32 to, u32 barrier, int line, int k, int batch, int share, u16 blocks) {
  #pragma unroll
  for (int panel = 0; panel < Operand::PANELS; ++panel) {
    const u32 start = to + panel * Operand::PANEL_BYTES + share * Operand::SHARE_BYTES;
    const int x = (Operand::IS_K_MAJOR ? k : line) + panel * Operand::INNER;
    const int y = (Operand::IS_K_MAJOR ? line : k) + share * Operand::SHARE_ROWS;
    const int z = Operand::inner_batch(batch);
    if constexpr (Operand::HAS_TWO_BATCH_AXES) {
      const int w = Operand::outer_batch(batch);
      if (Operand::SHARERS > 1) copy_in_to_all(start, map, barrier, x, y, z, w, blocks);
      else copy_in(start, map, barrier, x, y, z, w);
    } else {
      if (Operand::SHARERS > 1) copy_in_to_all(start, map, barrier, x, y, z, blocks);
      else copy_in(start, map, barrier, x, y, z);
    }
  }
}
"""

_PRODUCER = """
__device__ __forceinline__ void produce(const TensorMap& a_map, const TensorMap& b_map,
                                        u32 memory, int rank) {
  const int rank_m = rank % CLUSTER_M, rank_n = rank / CLUSTER_M % CLUSTER_N;
  const u16 same_m = A_BLOCKS << rank_m, same_n = B_BLOCKS << rank_n * CLUSTER_M;
  Ring ring;
  for (int unit = blockIdx.x / CLUSTER; unit < UNITS; unit += CLUSTERS) {
    const Tile tile = tile_of(unit, rank);
    const int end = first_step(tile.part + 1);
    for (int step = first_step(tile.part); step < end; ++step) {
      const u32 a = memory + ring.stage * STAGE_BYTES, b = a + A::TOTAL_BYTES;
      const u32 full = full_barrier(memory, ring.stage);
      barrier_wait(empty_barrier(memory, ring.stage), ring.parity ^ 1);
      barrier_expect(full, STAGE_BYTES);
      copy_share<A>(a_map, a, full, tile.row, step * BLOCK_K, tile.batch, rank_n, same_m);
      copy_share<B>(b_map, b, full, tile.column, step * BLOCK_K, tile.batch, rank_m, same_n);
      ring.advance();
    }
  }
}
"""

_CONSUMER = """
// Tells every block that copies into this stage of ours that this warp has read it.
__device__ __forceinline__ void release(u32 memory, int stage, int rank) {
  const int lane = threadIdx.x % 32;
  const u32 barrier = empty_barrier(memory, stage);
  if (SOURCES == 1) {
    if (lane == 0) barrier_arrive(barrier);
  } else if (lane < SOURCES) {
    const int rank_m = rank % CLUSTER_M, rank_n = rank / CLUSTER_M;
    const int other_n = lane - CLUSTER_M;
    const int source = lane < CLUSTER_M ? lane + rank_n * CLUSTER_M
                                        : rank_m + (other_n + (other_n >= rank_n)) * CLUSTER_M;
    barrier_arrive_in_cluster(address_in_block(barrier, source));
  }
}
// An address has the block's rank in its cluster above its 18 bits, a descriptor other fields.
template <class Operand> __device__ __forceinline__ u64 descriptor(u32 address) {
  return Operand::DESCRIPTOR | (address & 0x3ffff) >> 4;
}
__device__ __forceinline__ void multiply_stage(Accumulator (&sums)[SUBTILES][SUMS], u32 a, u32 b,
                                               bool is_first) {
  wgmma_fence();
  #pragma unroll
  for (int k = 0; k < BLOCK_K; k += WGMMA_K) {
    #pragma unroll
    for (int subtile = 0; subtile < SUBTILES; ++subtile) {
      const u32 a_start = a + A::line_offset(subtile * 64) + A::k_offset(k);
      const u32 b_start = b + B::k_offset(k);
      multiply(sums[subtile], descriptor<A>(a_start), descriptor<B>(b_start), !is_first || k > 0);
    }
  }
  wgmma_commit();
}
// One step is multiplied while the one before it ends, whose stage is then free.
__device__ __forceinline__ void accumulate(Accumulator (&sums)[SUBTILES][SUMS], Ring& ring,
                                           const Tile& tile, u32 memory, int rank, int line,
                                           int next_turn) {
  const int begin = first_step(tile.part), end = first_step(tile.part + 1);
  int previous = 0;
  for (int step = begin; step < end; ++step) {
    const u32 stage = memory + ring.stage * STAGE_BYTES;
    barrier_wait(full_barrier(memory, ring.stage), ring.parity);
    multiply_stage(sums, stage + A::line_offset(line), stage + A::TOTAL_BYTES, step == begin);
    wgmma_wait<1>();
    if (step > begin) release(memory, previous, rank);
    previous = ring.stage;
    ring.advance();
  }
  if (TILES_AT_ONCE > 1 && next_turn >= 0) threads_arrive(TURNS + next_turn, 256);
  wgmma_wait<0>();
  release(memory, previous, rank);
  #pragma unroll
  for (int subtile = 0; subtile < SUBTILES; ++subtile)
    #pragma unroll
    for (int i = 0; i < SUMS; ++i) asm volatile("" : "+@letter@"(sums[subtile][i]) :: "memory");
}
__device__ __forceinline__ void consume(@output@, const Reads& reads, u32 memory, int rank,
                                        int warpgroup) {
  Accumulator sums[SUBTILES][SUMS];
  Ring ring;
  const int line = TILES_AT_ONCE > 1 ? 0 : warpgroup * SUBTILES * 64;
  int unit = blockIdx.x / CLUSTER;
  if (TILES_AT_ONCE > 1 && warpgroup == 1) {
    ring.skip(steps_of(unit, rank));
    unit += CLUSTERS;
  }
  for (; unit < UNITS; unit += TILES_AT_ONCE * CLUSTERS) {
    const Tile tile = tile_of(unit, rank);
    // A barrier's parity tells neighbouring uses of a stage apart, no others: a warpgroup that
    // skips uses waits until the one that has them is through.
    if (TILES_AT_ONCE > 1 && unit != blockIdx.x / CLUSTER) threads_sync(TURNS + warpgroup, 256);
    const bool has_next = unit + CLUSTERS < UNITS;
    accumulate(sums, ring, tile, memory, rank, line, has_next ? 1 - warpgroup : -1);
    store_tile(output, reads, sums, tile, line, memory, rank, warpgroup);
    if (TILES_AT_ONCE > 1) ring.skip(steps_of(unit + CLUSTERS, rank));
  }
}
"""

_KERNEL = """
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM)
gemm(const __grid_constant__ TensorMap a_map, const __grid_constant__ TensorMap b_map,
     @output_parameter@@reads@) {
  extern __shared__ __align__(1024) u8 shared_memory[];
  const u32 memory = shared_address(shared_memory);
  const int warpgroup = __shfl_sync(0xffffffff, threadIdx.x / 128, 0);
  const int rank = CLUSTER > 1 ? blockIdx.x % CLUSTER : 0;
  if (threadIdx.x == 128) {
    prefetch_map(a_map);
    prefetch_map(b_map);
  }
  make_ring(memory);
  if (warpgroup == 0) {
    @give_registers@
    if (threadIdx.x == 0) produce(a_map, b_map, memory, rank);
    __syncwarp();
    @producer_end@
  } else {
    @take_registers@
    consume(output, @read_values@, memory, rank, warpgroup - 1);
    @consumer_end@
  }
}
"""


def source(design: Design) -> str:
    """The kernel and what it calls."""
    d, problem, sink = design.d, design.problem, design.sink
    is_float = problem.accumulator == "float32"
    output = "const TensorMap& output" if d.tma_store > 1 else "Out* __restrict__ output"
    values = {
        "letter": "f" if is_float else "r",
        "output": output,
        "output_parameter": (
            "const __grid_constant__ TensorMap output" if d.tma_store > 1 else output
        ),
        "reads": epilogue.parameters(sink),
        "read_values": epilogue.arguments(sink),
        **_role_changes(design),
    }
    a, b = design.matrices
    parts = [
        constants(design),
        instructions.BARRIERS,
        instructions.COPIES,
        instructions.wgmma(
            design.product, problem.accumulator, d.block_n, a.is_k_major, b.is_k_major
        ),
        _operand("A", design.a),
        _operand("B", design.b),
        epilogue.functions(sink, problem.accumulator, problem.m, problem.n),
        _SCHEDULE,
        _RING,
        _COPY_SHARE if design.blocks is None else copies.source(design.a, design.b),
        _PRODUCER,
        epilogue.source(design),
        _CONSUMER,
        _KERNEL,
    ]
    text = "".join(parts)
    for name, value in values.items():
        text = text.replace(f"@{name}@", value)
    return text


def _role_changes(design: Design) -> dict[str, str]:
    """Statements where roles begin and end: registers change hands, clusters wait."""
    registers, cluster = design.registers, design.d.cluster_blocks
    change = 'asm volatile("setmaxnreg.{}.sync.aligned.u32 {};");'
    is_changed = registers.consumer > registers.launch
    # A block must not end while others of its cluster may write to its memory or read it.
    # Nor before TMA has read its buffers.
    stored = "if (threadIdx.x % 128 == 0) copies_out_wait<0>();" if design.d.tma_store > 1 else ""
    return {
        "give_registers": change.format("dec", registers.producer) if is_changed else "",
        "take_registers": change.format("inc", registers.consumer) if is_changed else "",
        "producer_end": "cluster_sync();" * (2 if design.d.cluster_k > 1 else cluster > 1),
        "consumer_end": stored + " cluster_sync();" * (cluster > 1),
    }


def constants(design: Design) -> str:
    """The numbers of a design, as C++."""
    d, grid, shared = design.d, design.grid, design.shared
    multicast = d.cluster_m * d.cluster_n
    sources = d.cluster_m + d.cluster_n - 1 if multicast > 1 else 1
    values = {
        "BLOCK_M": d.block_m,
        "BLOCK_N": d.block_n,
        "BLOCK_K": d.block_k,
        "BATCH": design.problem.batch,
        "STAGES": d.stages,
        "CONSUMERS": d.consumers,
        "TILES_AT_ONCE": d.tiles_at_once,
        "BLOCKS_PER_SM": d.blocks_per_sm,
        "THREADS": d.threads,
        "CLUSTER_M": d.cluster_m,
        "CLUSTER_N": d.cluster_n,
        "CLUSTER_K": d.cluster_k,
        "CLUSTER": d.cluster_blocks,
        "GROUP_M": min(int(d.group_m), grid.tiles_m // d.cluster_m),
        "UNITS_M": grid.tiles_m // d.cluster_m,
        "UNITS_N": grid.tiles_n // d.cluster_n,
        "UNITS": grid.units,
        "CLUSTERS": grid.clusters,
        "STEPS": grid.steps,
        "PARTS": d.parts,
        "SUBTILES": d.subtiles,
        "SUMS": d.block_n // 2,
        "WGMMA_K": design.product.k,
        "STAGE_BYTES": shared.a_stage + shared.b_stage,
        "STORE_OFFSET": shared.ring,
        "BARRIERS": shared.ring + shared.store,
        "TURNS": 1 + d.consumers,
        "SOURCES": sources,
        "RELEASES": 4 * d.warpgroups_per_tile * sources,
        "A_BLOCKS": sum(1 << n * d.cluster_m for n in range(d.cluster_n)),
        "B_BLOCKS": (1 << d.cluster_m) - 1,
    }
    kind = instructions.ACCUMULATOR[design.problem.accumulator]
    return f"{indexing.constants(values)}typedef {kind} Accumulator;\n"


def _operand(name: str, tile: layout.Tile) -> str:
    """What `copy_share` and `multiply_stage` read of an operand's layout."""
    k_major, source = tile.source.is_k_major, tile.source
    more = _batch_axes(source) if isinstance(source, layout.Matrix) else copies.members(tile)
    return f"""
struct {name} {{
  static constexpr bool IS_K_MAJOR = {str(k_major).lower()};
{more}  static constexpr int PANELS = {tile.panels}, PANEL_BYTES = {tile.panel_bytes};
  static constexpr int INNER = {tile.inner}, SHARERS = {tile.sharers};
  static constexpr int SHARE_ROWS = {tile.share_rows};
  static constexpr int SHARE_BYTES = {tile.share_rows * tile.width};
  static constexpr int TOTAL_BYTES = {tile.total_bytes};
  static constexpr u64 DESCRIPTOR = {tile.descriptor:#x}ull;
  static constexpr int line_offset(int line) {{
    return {f"line * {tile.width}" if k_major else f"line / {tile.inner} * {tile.panel_bytes}"};
  }}
  static constexpr int k_offset(int k) {{
    return {_k_offset(tile) if k_major else f"k * {tile.width}"};
  }}
}};
"""


def _batch_axes(source: layout.Matrix) -> str:
    """Members of an operand that tell where a matrix of the batch is in its tensor map."""
    batches = source.batches
    places = [axis.place if axis in batches.axes else "0" for axis in batches.both]
    return f"""\
  static constexpr bool HAS_TWO_BATCH_AXES = {str(len(places) > 1).lower()};
  static constexpr int inner_batch(int batch) {{ return {places[0]}; }}
  static constexpr int outer_batch(int batch) {{ return {[*places, "0"][1]}; }}
"""


def _k_offset(tile: layout.Tile) -> str:
    inside = f"k % {tile.inner} * {tile.element_bytes}"
    return f"k / {tile.inner} * {tile.panel_bytes} + {inside}"
