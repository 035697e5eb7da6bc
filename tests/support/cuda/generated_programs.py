"""Small programs in CUDA C++ as templates make them, each with a task that it computes.

- plain: two launches and a workspace, which the first of them fills;
- boxes: a tensor map for reading, swizzled or not, and one for writing;
- clusters: two blocks that read each other's shared memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm.script import tirx as T

from felix.launch_plan import Launch, LaunchPlan, TensorMap
from felix.task import Task
from felix.templates.generated import GeneratedProgram
from tests.support import tir_programs
from tests.support.cuda import fakes

ARCH = "sm_90a"
N = 1000
ROWS, COLUMNS = 100, 72
BOX_ROWS, BOX_COLUMNS = 64, 32
PAIRS, THREADS = 6, 128

_PLAIN = """
extern "C" __global__ void squares(const float* a, float* out) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < 1000) out[i] = a[i] * a[i];
}
extern "C" __global__ void sums(const float* squares, const float* b, float* out) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < 1000) out[i] = squares[i] + b[i];
}
"""

# A box is read by a row of 128 bytes after the other; swizzled, the eight groups of 16 bytes of a
# row change places by its number.
_BOXES = """
struct __align__(64) TensorMap { unsigned char bytes[128]; };

__device__ unsigned shared_address(const void* pointer) {
  return (unsigned)__cvta_generic_to_shared(pointer);
}

extern "C" __global__ void doubled(const __grid_constant__ TensorMap in,
                                   const __grid_constant__ TensorMap out) {
  extern __shared__ unsigned char memory[];
  unsigned char* aligned = memory + (1024 - shared_address(memory) % 1024) % 1024;
  float* read = (float*)aligned;
  float* written = (float*)(aligned + 8192);
  unsigned barrier = shared_address(aligned + 16384);
  int column = blockIdx.x * 32, row = blockIdx.y * 64;
  if (threadIdx.x == 0) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" :: "r"(barrier));
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async;" ::: "memory");
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], 8192;" :: "r"(barrier));
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
        "[%0], [%1, {%2, %3}], [%4];"
        :: "r"(shared_address(read)), "l"(&in), "r"(column), "r"(row), "r"(barrier) : "memory");
  }
  int done = 0;
  while (!done)
    asm volatile(
        "{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], 0; "
        "selp.s32 %0, 1, 0, p; }"
        : "=r"(done) : "r"(barrier) : "memory");
  for (int i = threadIdx.x; i < 2048; i += blockDim.x) {
    int byte = i * 4;
    if (SWIZZLED) byte ^= (byte / 128 % 8) * 16;
    written[i] = 2.0f * read[byte / 4];
  }
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
  if (threadIdx.x == 0) {
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];"
        :: "l"(&out), "r"(column), "r"(row), "r"(shared_address(written)) : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
  }
}
"""

_CLUSTERS = """
extern "C" __global__ void swapped(const float* in, float* out) {
  __shared__ float mine[128];
  int at = blockIdx.x * 128 + threadIdx.x;
  unsigned rank, there;
  float value;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  mine[threadIdx.x] = in[at];
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there)
      : "r"((unsigned)__cvta_generic_to_shared(mine + threadIdx.x)), "r"(rank ^ 1));
  asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(value) : "r"(there) : "memory");
  out[at] = value;
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
"""


square_sum = tir_programs.mapped(lambda a, b: a * a + b, (N,))
double = tir_programs.mapped(lambda a: a * 2.0, (ROWS, COLUMNS), names="a")


@tir_programs.prim_func(s_tir=True)
def swap(a: T.Buffer((6, 2, 128), "float32"), c: T.Buffer((6, 2, 128), "float32")):
    for p, h, t in T.grid(6, 2, 128):
        with T.sblock("c"):
            vp, vh, vt = T.axis.remap("SSS", [p, h, t])
            c[vp, vh, vt] = a[vp, 1 - vh, vt]


DOUBLES = fakes.computing(lambda a: 2 * a, ROWS * COLUMNS)
SWAPS = fakes.computing(lambda a: a[:, ::-1], (PAIRS, 2, THREADS))


def kernels(driver: Callable[[], fakes.Driver]) -> dict[str, fakes.Kernel]:
    """Those of the programs here, for a fake driver."""

    def doubled(args: Sequence[int]) -> None:
        count = ROWS * COLUMNS
        read, written = (fakes.array(driver().map_of(at).address, count) for at in args)
        written[:] = 2 * read

    squares = fakes.computing(lambda a: a * a, N)
    sums = fakes.computing(lambda squared, b: squared + b, N)
    return {"squares": squares, "sums": sums, "doubled": doubled, "swapped": SWAPS}


def task(func: Any, target: Any = "h200") -> Task:
    """The task of one of the functions here."""
    return Task.from_prim_func(func, target, name="generated")


def plain() -> GeneratedProgram:
    """What `square_sum` computes."""
    extents = (-(-N // 256), 1, 1, 256, 1, 1)
    launches = (Launch("squares", extents, 0, (0, 3)), Launch("sums", extents, 0, (3, 1, 2)))
    return GeneratedProgram(_PLAIN, ARCH, LaunchPlan(3, (4 * N,), launches))


def boxes(swizzle_bytes: int = 128, **changed: Any) -> GeneratedProgram:
    """What `double` computes; `changed` are fields of the tensor map for reading."""
    shape, box = (COLUMNS, ROWS), (BOX_COLUMNS, BOX_ROWS)
    strides = (4 * COLUMNS,)
    fields: dict[str, Any] = {"swizzle_bytes": swizzle_bytes, **changed}
    read = TensorMap(
        **{
            "tensor": 0,
            "dtype": "float32",
            "extents": shape,
            "strides_bytes": strides,
            "box": box,
            **fields,
        }
    )
    written = TensorMap(1, "float32", shape, strides, box)
    grid = (-(-COLUMNS // BOX_COLUMNS), -(-ROWS // BOX_ROWS), 1)
    launch = Launch("doubled", (*grid, THREADS, 1, 1), 2 * 8192 + 8 + 1024, (read, written))
    source = f"#define SWIZZLED {int(swizzle_bytes == 128)}\n{_BOXES}"
    return GeneratedProgram(source, ARCH, LaunchPlan(2, (), (launch,)))


def clusters(size: int = 2) -> GeneratedProgram:
    """What `swap` computes in clusters of two blocks."""
    launch = Launch("swapped", (2 * PAIRS, 1, 1, THREADS, 1, 1), 0, (0, 1), (size, 1, 1))
    return GeneratedProgram(_CLUSTERS, ARCH, LaunchPlan(2, (), (launch,)))


#: A function, and what makes the program that computes it.
CASES: list[tuple[Any, Callable[[], GeneratedProgram]]] = [
    (square_sum, plain),
    (double, boxes),
    (double, lambda: boxes(0)),
    (swap, clusters),
]
