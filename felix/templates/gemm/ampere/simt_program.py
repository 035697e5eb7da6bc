"""CUDA source and launch plan of products in float32 by threads; constants and types in capitals
are defined before the text that has them.

Notation: tiles lie in shared memory as in `simt`; a *fragment* is what a thread holds of a
tile's line: its rows of A, its columns of B. Beside the functions of `instructions` there are

load_vector<N>(to, from)                1, 2 or 4 elements of shared memory
store_vector<N>(to, from)               2 or 4 elements to global memory
multiply_add(sum, x, y)                 sum += x · y, rounded once
"""

from __future__ import annotations

from felix.templates.gemm.ampere import epilogue, instructions, kernel_text, packing, simt
from felix.templates.gemm.ampere import program as staged
from felix.templates.gemm.ampere.simt import Decisions
from felix.templates.gemm.problem import GemmProblem
from felix.templates.generated import GeneratedProgram

_ARITHMETIC = """
template <int N> struct Vector;
template <> struct Vector<1> { typedef float type; };
template <> struct Vector<2> { typedef float2 type; };
template <> struct Vector<4> { typedef float4 type; };
template <int N>
__device__ __forceinline__ void load_vector(float* to, const float* from) {
  union { typename Vector<N>::type whole; float elements[N]; } vector;
  vector.whole = *reinterpret_cast<const typename Vector<N>::type*>(from);
  #pragma unroll
  for (int i = 0; i < N; ++i) to[i] = vector.elements[i];
}
template <int N>
__device__ __forceinline__ void store_vector(float* to, const float* from) {
  union { typename Vector<N>::type whole; float elements[N]; } vector;
  #pragma unroll
  for (int i = 0; i < N; ++i) vector.elements[i] = from[i];
  *reinterpret_cast<typename Vector<N>::type*>(to) = vector.whole;
}
__device__ __forceinline__ void multiply_add(float& sum, float x, float y) {
  sum = fmaf(x, y, sum);
}
"""

_TILES = """
constexpr int WARPS = WARPS_M * WARPS_N, THREADS = 32 * WARPS;

// Tiles of an operand of ROWS x K: BLOCK_K lines of BLOCK rows, PITCH elements apart.
// A copy has WIDTH elements; SPREAD_ROWS x SPREAD_K threads copy side by side.
template <bool IS_TRANSPOSED, int ROWS, int BLOCK, long long LINE_STRIDE, int WIDTH, int PITCH,
          int SPREAD_ROWS, int SPREAD_K>
struct Operand {
  static constexpr int FLOATS = PITCH * BLOCK_K, LINE = PITCH;
  static constexpr int ROW_STEP = SPREAD_ROWS * WIDTH;
  static constexpr int COPIES_ROWS = (BLOCK + ROW_STEP - 1) / ROW_STEP;
  static constexpr int COPIES_K = (BLOCK_K + SPREAD_K - 1) / SPREAD_K;
  static constexpr long long ROW_STRIDE = IS_TRANSPOSED ? LINE_STRIDE : 1;
  static constexpr long long K_STRIDE = IS_TRANSPOSED ? 1 : LINE_STRIDE;

  int row, k;             // of the thread's first copy, in the tile
  int rows_left, k_left;  // of the operand, from there
  const float* from;

  __device__ __forceinline__ Operand(const float* matrix, int first_row, int first_k) {
    const int thread = int(threadIdx.x), lane = thread % 32, warp = thread / 32;
    row = IS_TRANSPOSED ? lane / 8 + warp / (SPREAD_K / 8) * 4 : thread % SPREAD_ROWS * WIDTH;
    k = IS_TRANSPOSED ? lane % 8 + warp % (SPREAD_K / 8) * 8 : thread / SPREAD_ROWS;
    rows_left = ROWS - first_row - row;
    k_left = K - first_k - k;
    from = matrix + (first_row + row) * ROW_STRIDE + (first_k + k) * K_STRIDE;
  }

  // Copies a tile, zeros beyond the operand, and goes on to the next one along k.
  __device__ __forceinline__ void copy(float* tile) {
    float* const to = tile + k * PITCH + row;
    #pragma unroll
    for (int i = 0; i < COPIES_ROWS; ++i) {
      if (BLOCK % ROW_STEP && row + i * ROW_STEP >= BLOCK) break;
      int inside = WIDTH;
      if constexpr (ROWS % BLOCK != 0) {
        const int left = rows_left - i * ROW_STEP;
        inside = ROWS % WIDTH ? min(max(left, 0), WIDTH) : left > 0 ? WIDTH : 0;
      }
      #pragma unroll
      for (int j = 0; j < COPIES_K; ++j) {
        if (BLOCK_K % SPREAD_K && k + j * SPREAD_K >= BLOCK_K) break;
        const int valid = K % BLOCK_K == 0 || j * SPREAD_K < k_left ? inside : 0;
        copy_async<4 * WIDTH>(to + j * SPREAD_K * PITCH + i * ROW_STEP,
                              from + i * ROW_STEP * ROW_STRIDE + j * SPREAD_K * K_STRIDE,
                              4 * valid);
      }
    }
    from += BLOCK_K * K_STRIDE;
    k_left -= BLOCK_K;
  }
};
"""

_SUM_TILE = """
constexpr int TILES_M = (M + BLOCK_M - 1) / BLOCK_M, TILES_N = (N + BLOCK_N - 1) / BLOCK_N;
constexpr int STAGE = TileA::FLOATS + TileB::FLOATS;
constexpr int PIECE_M = THREAD_M < 4 ? THREAD_M : 4, PIECES_M = THREAD_M / PIECE_M;
constexpr int PIECES_N = THREAD_N / 4;
// Values of k for which instructions are there.
constexpr int UNROLLED_K = BLOCK_K % 16 == 0 && THREAD_M * THREAD_N <= 64 ? 16 : 8;

// A thread's place in the tile: neighbours share rows, and pairs of neighbours columns.
struct Place {
  int row, column;
  __device__ __forceinline__ Place() {
    const int lane = int(threadIdx.x) % 32, warp = int(threadIdx.x) / 32;
    int lane_m = LANES_M == 1 ? 0 : lane / LANES_N, lane_n = lane % LANES_N;
    if constexpr (LANES_M > 1 && LANES_N > 1) {
      lane_n = lane % 2 + lane / 4 % (LANES_N / 2) * 2;
      lane_m = lane / 2 % 2 + lane / (2 * LANES_N) * 2;
    }
    row = warp % WARPS_M * (LANES_M * THREAD_M) + lane_m * PIECE_M;
    column = warp / WARPS_M * (LANES_N * THREAD_N) + lane_n * 4;
  }
};

struct Fragments {
  float a[THREAD_M], b[THREAD_N];

  // Of line k of the tiles; `a_tile` and `b_tile` begin at the thread's place.
  __device__ __forceinline__ void load(const float* a_tile, const float* b_tile, int k) {
    #pragma unroll
    for (int i = 0; i < PIECES_M; ++i)
      load_vector<PIECE_M>(a + i * PIECE_M, a_tile + k * TileA::LINE + i * LANES_M * PIECE_M);
    #pragma unroll
    for (int j = 0; j < PIECES_N; ++j)
      load_vector<4>(b + j * 4, b_tile + k * TileB::LINE + j * LANES_N * 4);
  }
};

__device__ __forceinline__ void multiply(float (&sums)[THREAD_M][THREAD_N],
                                         const Fragments& of) {
  #pragma unroll
  for (int i = 0; i < THREAD_M; ++i)
    #pragma unroll
    for (int j = 0; j < THREAD_N; ++j) multiply_add(sums[i][j], of.a[i], of.b[j]);
}

// Adds the products of steps [first, first + count) of the tile at (row, column).
__device__ __forceinline__ void sum_tile(float (&sums)[THREAD_M][THREAD_N], float* stages,
                                         const float* a, const float* b, const Place& place,
                                         int row, int column, int first, int count) {
  TileA source_a(a, row, first * BLOCK_K);
  TileB source_b(b, column, first * BLOCK_K);
  int copied = 0;
  auto copy = [&](int slot) {
    if (copied < count) {
      source_a.copy(stages + slot * STAGE);
      source_b.copy(stages + slot * STAGE + TileA::FLOATS);
    }
    ++copied;
    commit_copies();
  };
  #pragma unroll 1
  for (int slot = 0; slot < STAGES - 1; ++slot) copy(slot);
  wait_for_copies<STAGES - 2>();
  __syncthreads();

  int slot = 0, free_slot = STAGES - 1;
  const float *a_tile = stages + place.row, *b_tile = stages + TileA::FLOATS + place.column;
  Fragments fragments[2];
  fragments[0].load(a_tile, b_tile, 0);
  #pragma unroll 1
  for (int step = 0; step < count; ++step) {
    // All threads have loaded what the free slot held before they passed the last barrier.
    copy(free_slot);
    #pragma unroll 1
    for (int outer = 0; outer < BLOCK_K / UNROLLED_K; ++outer) {
      #pragma unroll
      for (int k = 0; k < UNROLLED_K; ++k) {
        if (k < UNROLLED_K - 1) {
          fragments[(k + 1) % 2].load(a_tile, b_tile, k + 1);
        } else {
          a_tile += UNROLLED_K * TileA::LINE;
          b_tile += UNROLLED_K * TileB::LINE;
          if (outer == BLOCK_K / UNROLLED_K - 1) {
            free_slot = slot;
            slot = slot + 1 == STAGES ? 0 : slot + 1;
            a_tile = stages + slot * STAGE + place.row;
            b_tile = stages + slot * STAGE + TileA::FLOATS + place.column;
            wait_for_copies<STAGES - 2>();
            __syncthreads();
          }
          fragments[0].load(a_tile, b_tile, 0);
        }
        multiply(sums, fragments[k % 2]);
      }
    }
  }
}
"""

_KERNEL = (
    """
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM)
gemm(const float* __restrict__ a, const float* __restrict__ b, Target* __restrict__ target
     READ_PARAMETERS) {
"""
    + kernel_text.TILE_OF_BLOCK
    + """\

  constexpr int STEPS = (K + BLOCK_K - 1) / BLOCK_K, PART = (STEPS + SPLIT_K - 1) / SPLIT_K;
  float sums[THREAD_M][THREAD_N];
  #pragma unroll
  for (int i = 0; i < THREAD_M; ++i)
    #pragma unroll
    for (int j = 0; j < THREAD_N; ++j) sums[i][j] = 0.0f;
  const Place place;
  sum_tile(sums, reinterpret_cast<float*>(stages), a + start_of_A(batch), b + start_of_B(batch),
           place, row, column, part * PART, min(STEPS - part * PART, PART));

  const Reads reads = READ_ARGUMENTS;
  #pragma unroll
  for (int i = 0; i < THREAD_M; ++i)
    #pragma unroll
    for (int j = 0; j < PIECES_N; ++j)
      store(target, reads, part, batch,
            row + place.row + i / PIECE_M * (LANES_M * PIECE_M) + i % PIECE_M,
            column + place.column + j * (LANES_N * 4), &sums[i][4 * j]);
}
"""
)

_STORE_RESULT = """
typedef Out Target;
__device__ __forceinline__ void store(Out* target, const Reads& reads, int, int batch, int row,
                                      int column, const float* x) {
  store_four(target, reads, batch, row, column, x[0], x[1], x[2], x[3]);
}
"""

#: After `kernel_text.PARTIAL_SUMS`, and before its `REDUCTION`.
_STORE_PARTIAL = """
union SumPair { u64 vector; Sum values[2]; };

__device__ __forceinline__ void store(float* target, const Reads&, int part, int batch, int row,
                                      int column, const float* x) {
  if (row >= M || column >= N) return;
  float* const to = target + partial_offset(part, batch, row, column);
  if constexpr (PARTIAL_COLUMNS % 4 == 0) {
    store_vector<4>(to, x);
  } else {
    store_vector<2>(to, x);
    if (column + 2 < N) store_vector<2>(to + 2, x + 2);
  }
}
"""


def program(problem: GemmProblem, d: Decisions, arch: str) -> GeneratedProgram:
    """The kernels of legal decisions, integers all."""
    a, b = simt.tiles(problem)
    before = [
        _constants(problem, d),
        device_functions(problem),
        epilogue.functions_of_four(problem),
        _TILES,
        _tile("TileA", a, "M", int(d.block_m), d),
        _tile("TileB", b, "N", int(d.block_n), d),
        _SUM_TILE,
    ]
    packed, stores = packing.Packed(problem), (_STORE_RESULT, _STORE_PARTIAL)
    return staged.staged_program(packed, d, arch, "".join(before), stores, _KERNEL)


def device_functions(problem: GemmProblem) -> str:
    """What a thread does, for a problem."""
    return instructions.conversions(problem) + instructions.COPIES + _ARITHMETIC


def _constants(problem: GemmProblem, d: Decisions) -> str:
    of_warps = {
        "THREAD_M": d.thread_m,
        "THREAD_N": d.thread_n,
        "LANES_M": d.lanes_m,
        "LANES_N": d.lanes_n,
    }
    return f"{staged.constants(problem, d, of_warps, {})}typedef float Sum;\n"


def _tile(name: str, tile: simt.Tile, axis: str, rows: int, d: Decisions) -> str:
    """The type of the tiles of A or B, whose rows are an axis of C."""
    along_rows, along_k = tile.spread(rows, d.block_k, d.threads)
    return (
        f"typedef Operand<{str(tile.is_transposed).lower()}, {axis}, BLOCK_{axis}, "
        f"{tile.matrix.line_stride}ll, {tile.width}, {tile.pitch(rows)}, "
        f"{along_rows}, {along_k}> {name};\n"
    )
