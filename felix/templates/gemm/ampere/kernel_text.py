"""The CUDA text of the kernels; constants and types in capitals are defined before it, and so are
the functions of `instructions`.

Notation: a *line* of a tile and its *chunks* are as in `layout`; a *fragment* is what a warp's
threads hold of an operand for one mma.sync, 32 bytes of k.
"""

from __future__ import annotations

TILES = """
constexpr int CHUNK = 16 / sizeof(Element);
constexpr int THREADS = 32 * WARPS_M * WARPS_N;

// Copies `valid` elements to a chunk of shared memory and fills it with zeros.
template <int COPY_BYTES>
__device__ __forceinline__ void copy_chunk(u8* to, const Element* from, int valid) {
  constexpr int SIZE = int(sizeof(Element)), COPY = COPY_BYTES / SIZE;
  if constexpr (COPY_BYTES > 0) {
    #pragma unroll
    for (int i = 0; i < CHUNK; i += COPY) {
      copy_async<COPY_BYTES>(to + i * SIZE, from + i, min(max(valid - i, 0), COPY) * SIZE);
    }
  } else {
    union { uint4 vector; Element values[CHUNK]; } chunk;
    #pragma unroll
    for (int i = 0; i < CHUNK; ++i) chunk.values[i] = i < valid ? from[i] : Element(0);
    *reinterpret_cast<uint4*>(to) = chunk.vector;
  }
}

// Tiles of an operand of ROWS x K. Lines are rows where elements are adjacent along k.
template <bool ALONG_K, int ROWS, int BLOCK, long long LINE_STRIDE, int COPY_BYTES, int GROUP>
struct Operand {
  static constexpr int LINES = ALONG_K ? BLOCK : BLOCK_K;
  static constexpr int CHUNKS = (ALONG_K ? BLOCK_K : BLOCK) / CHUNK;
  static constexpr int BYTES = LINES * CHUNKS * 16;
  static constexpr int PERIOD = 8 / GROUP;
  static constexpr bool IS_WHOLE = ROWS % BLOCK == 0 && K % BLOCK_K == 0;

  static __device__ __forceinline__ u32 position(u32 line, u32 chunk) {
    return (line * CHUNKS + (chunk ^ (line / PERIOD % GROUP))) * 16;
  }

  // Copies the tile that begins at a row and at a value of k; zeros beyond the operand.
  static __device__ __forceinline__ void copy(u8* tile, const Element* matrix, int row, int k) {
    constexpr int COPIES = (LINES * CHUNKS + THREADS - 1) / THREADS;
    #pragma unroll
    for (int i = 0; i < COPIES; ++i) {
      u32 line, chunk;
      if constexpr (THREADS % CHUNKS == 0) {
        line = threadIdx.x / CHUNKS + i * (THREADS / CHUNKS);
        chunk = threadIdx.x % CHUNKS;
      } else {
        line = (threadIdx.x + i * THREADS) / CHUNKS;
        chunk = (threadIdx.x + i * THREADS) % CHUNKS;
      }
      if ((i + 1) * THREADS > LINES * CHUNKS && line >= LINES) break;
      const int outer = (ALONG_K ? row : k) + line;
      const int inner = (ALONG_K ? k : row) + chunk * CHUNK;
      int valid = CHUNK;
      if constexpr (!IS_WHOLE) {
        constexpr int OUTER = ALONG_K ? ROWS : K, INNER = ALONG_K ? K : ROWS;
        valid = outer < OUTER ? min(max(INNER - inner, 0), CHUNK) : 0;
      }
      const Element* from = matrix + outer * LINE_STRIDE + inner;
      copy_chunk<COPY_BYTES>(tile + position(line, chunk), from, valid);
    }
  }

  // The operand's tiles that begin at a row.
  struct Source {
    const Element* matrix;
    const int row;
    __device__ __forceinline__ Source(const Element* m, int, int r) : matrix(m), row(r) {}
    __device__ __forceinline__ void copy(u8* tile, int k) const {
      Operand::copy(tile, matrix, row, k);
    }
  };

  // Four 8 x 16-byte matrices at a row of the tile and at 32 bytes of k, number `step`. The second
  // one is the next 8 rows if IS_A, else the next 16 bytes of k; the third one is the other.
  template <bool IS_A>
  static __device__ __forceinline__ void load(u32 (&to)[4], const u8* tile, u32 row, int step) {
    const u32 lane = threadIdx.x % 32, second = lane / 8 % 2, third = lane / 16;
    const u32 more_rows = IS_A ? second : third, more_k = IS_A ? third : second;
    if constexpr (ALONG_K) {
      const u32 line = row + lane % 8 + 8 * more_rows;
      load_matrices(to, tile + position(line, 2 * step + more_k));
    } else {
      const u32 line = 16 * step + lane % 8 + 8 * more_k;
      load_transposed_matrices(to, tile + position(line, row / 8 + more_rows));
    }
  }
};
"""

SUM_TILE = """
constexpr int TILES_M = (M + BLOCK_M - 1) / BLOCK_M, TILES_N = (N + BLOCK_N - 1) / BLOCK_N;
constexpr int STAGE_BYTES = TileA::BYTES + TileB::BYTES;
constexpr int MMAS_M = WARP_M / 16, MMAS_N = WARP_N / 8, MMAS_K = BLOCK_K / INSTRUCTION_K;

union SumPair { u64 vector; Sum values[2]; };

struct Fragments {
  u32 a[MMAS_M][4], b[MMAS_N / 2][4];

  __device__ __forceinline__ void load(const u8* stage, u32 row, u32 column, int step) {
    #pragma unroll
    for (int i = 0; i < MMAS_M; ++i) TileA::load<true>(a[i], stage, row + 16 * i, step);
    #pragma unroll
    for (int j = 0; j < MMAS_N / 2; ++j)
      TileB::load<false>(b[j], stage + TileA::BYTES, column + 16 * j, step);
  }
};

__device__ __forceinline__ void multiply(Sum (&sums)[MMAS_M][MMAS_N][4], const Fragments& of) {
  #pragma unroll
  for (int i = 0; i < MMAS_M; ++i)
    #pragma unroll
    for (int j = 0; j < MMAS_N; ++j)
      mma(sums[i][j], of.a[i], of.b[j / 2][j % 2 * 2], of.b[j / 2][j % 2 * 2 + 1]);
}

// Adds the products of steps [first, first + count) of the tile at (row, column).
__device__ __forceinline__ void sum_tile(Sum (&sums)[MMAS_M][MMAS_N][4], u8* stages,
                                         const Element* a, const Element* b, int batch, int row,
                                         int column, int first, int count) {
  const u32 warp = threadIdx.x / 32;
  const u32 warp_row = warp % WARPS_M * WARP_M, warp_column = warp / WARPS_M * WARP_N;
  const typename TileA::Source source_a(a, batch, row);
  const typename TileB::Source source_b(b, batch, column);
  auto copy = [&](int step, int slot) {
    if (step < count) {
      u8* const stage = stages + slot * STAGE_BYTES;
      source_a.copy(stage, (first + step) * BLOCK_K);
      source_b.copy(stage + TileA::BYTES, (first + step) * BLOCK_K);
    }
    commit_copies();
  };
  #pragma unroll 1
  for (int step = 0; step < STAGES - 1; ++step) copy(step, step);
  wait_for_copies<STAGES - 2>();
  __syncthreads();

  Fragments fragments[2];
  fragments[0].load(stages, warp_row, warp_column, 0);
  int slot = 0, free_slot = STAGES - 1;
  static_assert(MMAS_K % 2 == 0, "a step ends with the set of fragments that it began with");
  for (int step = 0; step < count; ++step) {
    #pragma unroll
    for (int k = 0; k < MMAS_K; ++k) {
      // All warps have loaded what the free slot held before they passed the last barrier.
      if (k == 0) copy(step + STAGES - 1, free_slot);
      if (k == MMAS_K - 1) {
        free_slot = slot;
        slot = slot + 1 == STAGES ? 0 : slot + 1;
        wait_for_copies<STAGES - 2>();
        __syncthreads();
      }
      fragments[(k + 1) % 2].load(stages + slot * STAGE_BYTES, warp_row, warp_column,
                                  (k + 1) % MMAS_K);
      multiply(sums, fragments[k % 2]);
    }
  }
}
"""

#: Which tile of which matrix, and which part of the sum, a block computes.
TILE_OF_BLOCK = """\
  extern __shared__ __align__(128) u8 stages[];
  const int tile = int(blockIdx.x) % (TILES_M * TILES_N);
  const int part = int(blockIdx.x) / (TILES_M * TILES_N) % SPLIT_K;
  const int batch = int(blockIdx.x) / (TILES_M * TILES_N) / SPLIT_K;
  // Tiles run down GROUP_M rows of tiles before they go on to the next column of tiles.
  const int group = tile / (GROUP_M * TILES_N), within = tile % (GROUP_M * TILES_N);
  const int rows = min(TILES_M - group * GROUP_M, GROUP_M);
  const int row = (group * GROUP_M + within % rows) * BLOCK_M, column = within / rows * BLOCK_N;
"""

KERNEL = (
    """
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM)
gemm(const Element* __restrict__ a, const ElementB* __restrict__ b, Target* __restrict__ target
     READ_PARAMETERS) {
"""
    + TILE_OF_BLOCK
    + """\

  const int steps = (length_of(batch) + BLOCK_K - 1) / BLOCK_K;
  const int part_steps = (steps + SPLIT_K - 1) / SPLIT_K;

  Sum sums[MMAS_M][MMAS_N][4];
  #pragma unroll
  for (int i = 0; i < MMAS_M; ++i)
    #pragma unroll
    for (int j = 0; j < MMAS_N; ++j)
      #pragma unroll
      for (int e = 0; e < 4; ++e) sums[i][j][e] = 0;
  sum_tile(sums, stages, a + start_of_A(batch),
           reinterpret_cast<const Element*>(b) + start_of_B(batch), batch, row, column,
           part * part_steps, min(steps - part * part_steps, part_steps));

  const Reads reads = READ_ARGUMENTS;
  const u32 warp = threadIdx.x / 32;
  store_warp(sums, target, reads, stages, part, batch, row + warp % WARPS_M * WARP_M,
             column + warp / WARPS_M * WARP_N);
}
"""
)

#: Sums go through shared memory, 16 rows at a time, so that neighbours are stored together, and
#: the epilogue's code is there once for all of them.
STORE_RESULT = """
typedef Out Target;

__device__ __forceinline__ void store_warp(const Sum (&sums)[MMAS_M][MMAS_N][4], Out* target,
                                           const Reads& reads, u8* shared, int, int batch,
                                           int first_row, int first_column) {
  const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  Sum* const rows = reinterpret_cast<Sum*>(shared) + warp * 16 * STORE_PITCH;
  __syncthreads();
  #pragma unroll
  for (int i = 0; i < MMAS_M; ++i) {
    #pragma unroll
    for (int j = 0; j < MMAS_N; ++j)
      #pragma unroll
      for (int half = 0; half < 2; ++half) {
        SumPair both;
        both.values[0] = sums[i][j][2 * half];
        both.values[1] = sums[i][j][2 * half + 1];
        Sum* const to = rows + (lane / 4 + 8 * half) * STORE_PITCH + lane % 4 * 2 + 8 * j;
        *reinterpret_cast<u64*>(to) = both.vector;
      }
    __syncwarp();
    #pragma unroll 2
    for (int pair = lane; pair < 8 * WARP_N; pair += 32) {
      const int row = pair / (WARP_N / 2), column = pair % (WARP_N / 2) * 2;
      SumPair both;
      both.vector = *reinterpret_cast<const u64*>(rows + row * STORE_PITCH + column);
      store_pair(target, reads, batch, first_row + 16 * i + row, first_column + column,
                 both.values[0], both.values[1]);
    }
    __syncwarp();
  }
}
"""

#: Partial sums lie as [part][batch][row][column], with an even number of columns.
PARTIAL_SUMS = """
typedef Sum Target;
constexpr int PARTIAL_COLUMNS = (N + 1) / 2 * 2;
__device__ __forceinline__ long long partial_offset(long long part, int batch, int row,
                                                    int column) {
  return ((part * BATCH + batch) * M + row) * PARTIAL_COLUMNS + column;
}
"""

STORE_PARTIAL = """
__device__ __forceinline__ void store_warp(const Sum (&sums)[MMAS_M][MMAS_N][4], Sum* target,
                                           const Reads&, u8*, int part, int batch,
                                           int first_row, int first_column) {
  const int lane = threadIdx.x % 32;
  #pragma unroll
  for (int i = 0; i < MMAS_M; ++i)
    #pragma unroll
    for (int half = 0; half < 2; ++half)
      #pragma unroll
      for (int j = 0; j < MMAS_N; ++j) {
        const int row = first_row + 16 * i + 8 * half + lane / 4;
        const int column = first_column + 8 * j + lane % 4 * 2;
        if (row >= M || column >= N) continue;
        SumPair both;
        both.values[0] = sums[i][j][2 * half];
        both.values[1] = sums[i][j][2 * half + 1];
        const long long at = partial_offset(part, batch, row, column);
        *reinterpret_cast<u64*>(target + at) = both.vector;
      }
}
"""

REDUCTION = """
extern "C" __global__ void __launch_bounds__(256)
reduce(const Sum* __restrict__ partial, Out* __restrict__ output READ_PARAMETERS) {
  const long long pair = blockIdx.x * 256ll + threadIdx.x;
  const int column = int(pair % (PARTIAL_COLUMNS / 2)) * 2;
  const int row = int(pair / (PARTIAL_COLUMNS / 2) % M);
  const int batch = int(pair / (PARTIAL_COLUMNS / 2) / M);
  if (batch >= BATCH) return;
  Sum x0 = 0, x1 = 0;
  #pragma unroll 8
  for (int part = 0; part < SPLIT_K; ++part) {
    SumPair both;
    both.vector =
        *reinterpret_cast<const u64*>(partial + partial_offset(part, batch, row, column));
    x0 += both.values[0];
    x1 += both.values[1];
  }
  const Reads reads = READ_ARGUMENTS;
  store_pair(output, reads, batch, row, column, x0, x1);
}
"""
