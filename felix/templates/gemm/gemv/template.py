"""The template of products of few rows, for one problem on one GPU, and its CUDA source."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import sympy

from felix.launch_plan import Launch, LaunchPlan
from felix.target import Hardware
from felix.templates.gemm import indexing
from felix.templates.gemm.ampere import epilogue, instructions
from felix.templates.gemm.ampere import template as ampere
from felix.templates.gemm.gemv import decisions as design
from felix.templates.gemm.gemv.decisions import Decisions
from felix.templates.gemm.problem import GemmProblem, Operand
from felix.templates.generated import GeneratedProgram
from felix.templates.template import Parameter

_LEAST_ARCH = 70
_DECISION_LIMITS = "registers_per_block max_threads_per_block shared_bytes_per_block".split()


def unsuited(problem: GemmProblem) -> str | None:
    """Why the template cannot compute a problem on any GPU; None if it can."""
    of_operands = [problem.a.dtype, problem.b.dtype]
    for dtype in of_operands:
        if dtype not in instructions.STORAGE:
            return f"it has a tensor of {dtype}, which is not converted"
    if reason := ampere.unconverted(problem):
        return reason
    arithmetic = {instructions.arithmetic(dtype) for dtype in of_operands}
    expected = instructions.FLOAT if problem.accumulator == "float32" else instructions.INT
    if arithmetic != {expected}:
        return f"its products are not summed in {problem.accumulator}"
    if problem.phases or problem.a.gather or problem.b.gather:
        return "it is a convolution"
    if _turned(problem) is None:
        return f"it has more than {design.MOST_ROWS} rows, or its matrix is not contiguous along k"
    return None


def runs_on(arch: str) -> bool:
    """Whether kernels can be compiled for an architecture like "sm_86"."""
    return instructions.number(arch) >= _LEAST_ARCH


def templates(problem: GemmProblem, hardware: Hardware, arch: str) -> tuple[Gemv, ...]:
    """The template for a suited problem; none where the architecture lacks its conversions."""
    turned = _turned(problem)
    runs = runs_on(arch) and ampere.has_conversions(problem, arch)
    return (Gemv(turned, hardware, arch),) if turned and runs else ()


def _turned(problem: GemmProblem) -> GemmProblem | None:
    """The problem as few rows by a matrix that is contiguous along k; None if it is none."""
    for each in (problem, problem.swapped):
        if each.m <= design.MOST_ROWS and (each.b.strides[2] == 1 or each.k == 1):
            return each
    return None


class Gemv(ampere.ProductTemplate[Decisions]):
    """Threads along k and along columns, of a problem turned so that its rows are few; see
    `decisions`."""

    name = "gemv"
    version = 1
    decisions = Decisions

    @property
    def parameters(self) -> Sequence[Parameter]:
        return design.parameters(self.problem)

    def rows(self) -> Mapping[str, Mapping[str, sympy.Expr]]:
        return design.rows(self.problem, Decisions.symbols(), self.hardware)

    @property
    def _limits(self) -> list[int]:
        return [getattr(self.hardware, name) for name in _DECISION_LIMITS]

    def _constraints(self, d: Decisions) -> Sequence[tuple[str, sympy.Expr]]:
        return design.constraints(self.problem, d, self.hardware)

    def _program(self, d: Decisions) -> GeneratedProgram:
        return program(self.problem, d, self.arch)


_CHUNKS = """
template <class T, int COUNT> struct alignas(sizeof(T) * COUNT) Chunk { T values[COUNT]; };

// COUNT elements from an index on: as one where they are VECTOR neighbours or more.
template <int VECTOR, int COUNT, long long STRIDE, class T>
__device__ __forceinline__ void load_elements(T (&to)[COUNT], const T* from) {
  #pragma unroll
  for (int i = 0; i < COUNT; i += VECTOR) {
    const Chunk<T, VECTOR> chunk = *reinterpret_cast<const Chunk<T, VECTOR>*>(from + i * STRIDE);
    #pragma unroll
    for (int j = 0; j < VECTOR; ++j) to[i + j] = chunk.values[j];
  }
}
"""

_KERNEL = """
constexpr int GROUPS = 32 / LANES, WARP_COLUMNS = GROUPS * COLUMNS;
constexpr int BLOCK_COLUMNS = WARP_COLUMNS * WARPS_N, THREADS = 32 * WARPS_N * WARPS_K;
constexpr int TILES = (N + BLOCK_COLUMNS - 1) / BLOCK_COLUMNS;
constexpr int STRIDE = LANES * WARPS_K;  // chunks from one of a thread to its next
constexpr bool IS_WHOLE = CHUNKS % (STRIDE * UNROLL) == 0;

extern "C" __global__ void __launch_bounds__(THREADS)
gemv(const ElementA* __restrict__ a, const Element* __restrict__ b, Out* __restrict__ output
     READ_PARAMETERS) {
  extern __shared__ __align__(128) u8 stages[];
  const int tile = int(blockIdx.x) % TILES;
  const long long batch = int(blockIdx.x) / TILES;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % LANES;
  const int warp_n = warp % WARPS_N, warp_k = warp / WARPS_N;
  const int in_block = warp_n * WARP_COLUMNS + threadIdx.x % 32 / LANES * COLUMNS;
  const int first = tile * BLOCK_COLUMNS + in_block;
  a += start_of_A(batch);
  b += start_of_B(batch);

  Sum sums[M][COLUMNS] = {};
  for (int begin = warp_k * LANES + lane; begin < CHUNKS; begin += STRIDE * UNROLL) {
    Element loaded[UNROLL][COLUMNS][VECTOR];
    #pragma unroll
    for (int u = 0; u < UNROLL; ++u) {
      const int chunk = begin + u * STRIDE;
      #pragma unroll
      for (int c = 0; c < COLUMNS; ++c) {
        const long long column = min(first + c, N - 1);  // columns behind the last are not stored
        if (IS_WHOLE || chunk < CHUNKS) {
          load_elements<VECTOR, VECTOR, 1>(loaded[u][c], b + column * LINE_B + chunk * VECTOR);
        }
      }
    }
    #pragma unroll
    for (int u = 0; u < UNROLL; ++u) {
      const int chunk = begin + u * STRIDE;
      if (!IS_WHOLE && chunk >= CHUNKS) break;
      #pragma unroll
      for (int row = 0; row < M; ++row) {
        ElementA values[VECTOR];
        const ElementA* from = a + row * LINE_A + chunk * VECTOR * STRIDE_A;
        load_elements<VECTOR_A, VECTOR, STRIDE_A>(values, from);
        #pragma unroll
        for (int i = 0; i < VECTOR; ++i) {
          const Sum factor = wide_a(values[i]);
          #pragma unroll
          for (int c = 0; c < COLUMNS; ++c) sums[row][c] += factor * wide_b(loaded[u][c][i]);
        }
      }
    }
  }

  Sum* const parts = reinterpret_cast<Sum*>(stages);
  #pragma unroll
  for (int row = 0; row < M; ++row) {
    #pragma unroll
    for (int c = 0; c < COLUMNS; ++c) {
      Sum sum = sums[row][c];
      #pragma unroll
      for (int apart = LANES / 2; apart; apart /= 2) sum += __shfl_xor_sync(~0u, sum, apart);
      if (lane == (row * COLUMNS + c) % LANES) {
        parts[(warp_k * M + row) * BLOCK_COLUMNS + in_block + c] = sum;
      }
    }
  }
  __syncthreads();
  const Reads reads = READ_ARGUMENTS;
  for (int i = threadIdx.x; i < M * BLOCK_COLUMNS; i += THREADS) {
    Sum sum = 0;
    #pragma unroll
    for (int part = 0; part < WARPS_K; ++part) sum += parts[part * M * BLOCK_COLUMNS + i];
    const int column = tile * BLOCK_COLUMNS + i % BLOCK_COLUMNS;
    if (column < N) store_one(output, reads, batch, i / BLOCK_COLUMNS, column, sum);
  }
}
"""


def program(problem: GemmProblem, d: Decisions, arch: str) -> GeneratedProgram:
    """The kernel of legal decisions, integers all, and its one launch."""
    parts = [
        instructions.TYPES,
        _definitions(problem, d),
        instructions.conversions(problem),
        _operands(problem),
        epilogue.functions_of_one(problem),
        _CHUNKS,
        _KERNEL,
    ]
    blocks = int(design.tiles(problem, d)) * problem.batch
    reads = tuple(read.param for read in problem.epilogue.reads)
    launch = Launch(
        "gemv",
        (blocks, 1, 1, int(d.threads), 1, 1),
        int(design.shared_bytes(problem, d)),
        (problem.a.param, problem.b.param, problem.output.param, *reads),
    )
    plan = LaunchPlan(problem.n_params, (), (launch,))
    return GeneratedProgram(epilogue.filled(problem, "".join(parts)), arch, plan)


def _definitions(problem: GemmProblem, d: Decisions) -> str:
    vector = design.chunk_elements(problem.b, problem.k)
    of_a = design.chunk_elements(problem.a, problem.k)
    values = {
        "M": problem.m,
        "N": problem.n,
        "K": problem.k,
        "BATCH": problem.batch,
        "LANES": d.lanes,
        "COLUMNS": d.columns,
        "WARPS_N": d.warps_n,
        "WARPS_K": d.warps_k,
        "UNROLL": d.unroll,
        "VECTOR": vector,
        "VECTOR_A": min(vector, of_a),
        "CHUNKS": design.chunks(problem),
    }
    text = indexing.constants(values)
    _, line_a, stride_a = problem.a.strides
    _, line_b, _ = problem.b.strides
    strides = {"LINE_A": line_a, "STRIDE_A": stride_a, "LINE_B": line_b}
    return text + "".join(f"constexpr long long {k} = {v};\n" for k, v in strides.items())


def _operands(problem: GemmProblem) -> str:
    """Types of elements and of sums, where matrices begin, and elements as factors."""
    sums = "float" if problem.accumulator == "float32" else "int"
    text = f"typedef {sums} Sum;\n"
    for name, operand in (("A", problem.a), ("B", problem.b)):
        start = indexing.matrix_start(operand, problem)
        text += f"__device__ __forceinline__ long long start_of_{name}(long long batch) "
        text += f"{{ return {start}; }}\n{_widened(name, operand)}"
    return text


def _widened(name: str, operand: Operand) -> str:
    storage = instructions.STORAGE[operand.dtype]
    element = "ElementA" if name == "A" else "Element"
    function = f"__device__ __forceinline__ Sum wide_{name.lower()}({element} value)"
    widened = storage.widen.format("value")
    return f"typedef {storage.c_type} {element};\n{function} {{ return {widened}; }}\n"
