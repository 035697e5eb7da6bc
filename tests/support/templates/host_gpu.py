"""The text of the mma.sync kernels run on the CPU, thread by thread.

Each thread of a block is a fiber. The functions of `ampere.ptx` are replaced by C++ of what the
instructions are documented to do, so that tiles, swizzles, fragments, the ring of stages, splits
and stores are those of the generated text itself. Copies to shared memory arrive either as late
as waiting allows, or at once, which shows a missing wait or a slot that is reused too early.
"""

from __future__ import annotations

import ctypes
import dataclasses
import pathlib
import subprocess
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from felix.launch_plan import Launch
from felix.templates.gemm.ampere import instructions, simt_program
from felix.templates.gemm.problem import GemmProblem
from felix.templates.generated import GeneratedProgram

Array = NDArray[Any]

_RUNTIME = r"""
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>
#define __device__
#define __global__
#define __shared__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __align__(bytes)
struct Index { unsigned int x; };
struct uint4 { unsigned int x, y, z, w; };
struct float2 { float x, y; };
struct float4 { float x, y, z, w; };
static Index threadIdx, blockIdx;
alignas(128) unsigned char stages[1 << 18];
static inline int min(int a, int b) { return a < b ? a : b; }
static inline int max(int a, int b) { return a > b ? a : b; }
static inline float __uint_as_float(unsigned int bits) {
  float value; memcpy(&value, &bits, 4); return value;
}

// Fibers
enum { MOST_THREADS = 1024, STACK = 1 << 16 };
static ucontext_t scheduler, fibers[MOST_THREADS];
static bool finished_fibers[MOST_THREADS];
static int n_threads, is_late, n_errors;
extern "C" { long long counts[4]; }  // as in `Counts`
static void yield() { swapcontext(&fibers[threadIdx.x], &scheduler); }

struct Barrier { int arrived, generation; };
static Barrier block_barrier, warp_barriers[MOST_THREADS / 32];
static void arrive(Barrier& barrier, int expected) {
  const int generation = barrier.generation;
  if (++barrier.arrived == expected) { barrier.arrived = 0; ++barrier.generation; return; }
  while (barrier.generation == generation) yield();
}
static void __syncthreads() { arrive(block_barrier, n_threads); }
static void __syncwarp() { arrive(warp_barriers[threadIdx.x / 32], 32); }
template <class T> T __shfl_xor_sync(unsigned int, T value, int apart) {
  static T values[MOST_THREADS];
  values[threadIdx.x] = value;
  __syncwarp();
  const T other = values[threadIdx.x ^ apart];
  __syncwarp();
  return other;
}
"""

_INSTRUCTIONS = r"""
inline float float_of_half(u16 bits) {
  const int exponent = bits >> 10 & 31, mantissa = bits & 1023;
  const float size = exponent == 31 ? (mantissa ? NAN : INFINITY)
                     : exponent ? ldexpf(1024 + mantissa, exponent - 25) : ldexpf(mantissa, -24);
  return bits >> 15 ? -size : size;
}
inline u16 half_of(float value) { _Float16 half = value; u16 bits; memcpy(&bits, &half, 2);
  return bits; }
inline u16 bfloat16_of(float value) {
  u32 bits; memcpy(&bits, &value, 4);
  return u16((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

struct Copy { void *to; const void *from; int bytes, valid, group; };
enum { MOST_COPIES = 4096 };
static Copy copies[MOST_THREADS][MOST_COPIES];
static int n_copies[MOST_THREADS], n_groups[MOST_THREADS];
static void perform(const Copy& copy) {
  memset(copy.to, 0, copy.bytes);
  memcpy(copy.to, copy.from, copy.valid);
}
template <int BYTES> void copy_async(void* to, const void* from, int valid) {
  counts[1] += 1;
  counts[2] += BYTES;
  n_errors += (u64(to) % BYTES != 0) + (valid && u64(from) % BYTES != 0);
  n_errors += valid < 0 || valid > BYTES;
  const int t = threadIdx.x;
  const Copy copy = {to, from, BYTES, valid, n_groups[t]};
  if (!is_late) perform(copy);
  else if (n_copies[t] == MOST_COPIES) ++n_errors;
  else copies[t][n_copies[t]++] = copy;
}
inline void commit_copies() { ++n_groups[threadIdx.x]; }
template <int PENDING> void wait_for_copies() {
  const int t = threadIdx.x;
  int left = 0;
  for (int i = 0; i < n_copies[t]; ++i) {
    const Copy& copy = copies[t][i];
    if (copy.group < n_groups[t] - PENDING) perform(copy);
    else copies[t][left++] = copy;
  }
  n_copies[t] = left;
}

"""

_TENSOR_CORES = r"""
static const u8* row_of[MOST_THREADS];
static void load(u32 (&to)[4], const void* row, bool is_transposed) {
  const int t = threadIdx.x, lane = t % 32, warp = t - lane;
  n_errors += u64(row) % 16 != 0;
  row_of[t] = (const u8*)row;
  counts[3] += 16;
  __syncwarp();
  for (int i = 0; i < 4; ++i)
    if (!is_transposed) memcpy(&to[i], row_of[warp + 8 * i + lane / 4] + lane % 4 * 4, 4);
    else for (int e = 0; e < 2; ++e)
      memcpy((u8*)&to[i] + 2 * e, row_of[warp + 8 * i + lane % 4 * 2 + e] + lane / 4 * 2, 2);
  __syncwarp();
}
inline void load_matrices(u32 (&to)[4], const void* row) { load(to, row, false); }
inline void load_transposed_matrices(u32 (&to)[4], const void* row) { load(to, row, true); }

inline float value_of(u16 bits) { return OPERAND_VALUE; }
inline float value_of(float value) { return value; }
inline int value_of(signed char value) { return value; }
static u32 a_of[MOST_THREADS][4], b_of[MOST_THREADS][2];
static void mma(Sum (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  const int t = threadIdx.x, lane = t % 32, warp = t - lane;
  counts[0] += lane == 0;
  memcpy(a_of[t], a, 16);
  b_of[t][0] = b0; b_of[t][1] = b1;
  __syncwarp();
  for (int r = 0; r < 2; ++r) for (int c = 0; c < 2; ++c) {
    Element row[32 / sizeof(Element)], column[32 / sizeof(Element)];
    for (int half = 0; half < 2; ++half) for (int quarter = 0; quarter < 4; ++quarter) {
      const int byte = 16 * half + 4 * quarter;
      memcpy((u8*)row + byte, &a_of[warp + lane / 4 * 4 + quarter][2 * half + r], 4);
      memcpy((u8*)column + byte, &b_of[warp + (lane % 4 * 2 + c) * 4 + quarter][half], 4);
    }
    for (int i = 0; i < INSTRUCTION_K; ++i)
      d[2 * r + c] += value_of(row[i]) * value_of(column[i]);
  }
  __syncwarp();
}
"""

_THREADS = r"""
template <int N> inline void load_vector(float* to, const float* from) {
  counts[3] += 4 * N;
  n_errors += u64(from) % (4 * N) != 0;
  memcpy(to, from, 4 * N);
}
template <int N> inline void store_vector(float* to, const float* from) {
  n_errors += u64(to) % (4 * N) != 0;
  memcpy(to, from, 4 * N);
}
inline void multiply_add(float& sum, float x, float y) {
  counts[0] += 1;
  sum += x * y;
}
"""

_LAUNCHES = r"""
struct Pointer { void* address; template <class T> operator T*() const { return (T*)address; } };
static void** arguments;
static int kernel_number;
static void fiber() {
  switch (kernel_number) { KERNELS }
  finished_fibers[threadIdx.x] = true;
  swapcontext(&fibers[threadIdx.x], &scheduler);
}
extern "C" int launch(int kernel, int blocks, int threads, int late, void** args) {
  static unsigned char* stacks = (unsigned char*)malloc(size_t(MOST_THREADS) * STACK);
  kernel_number = kernel; n_threads = threads; is_late = late; n_errors = 0; arguments = args;
  for (blockIdx.x = 0; int(blockIdx.x) < blocks; ++blockIdx.x) {
    memset(stages, 0xff, sizeof(stages));
    memset(n_copies, 0, sizeof(n_copies)); memset(n_groups, 0, sizeof(n_groups));
    for (int t = 0; t < threads; ++t) {
      finished_fibers[t] = false;
      getcontext(&fibers[t]);
      fibers[t].uc_stack.ss_sp = stacks + size_t(t) * STACK;
      fibers[t].uc_stack.ss_size = STACK;
      fibers[t].uc_link = 0;
      makecontext(&fibers[t], fiber, 0);
    }
    for (int running = threads; running;) {
      running = 0;
      for (int t = 0; t < threads; ++t) if (!finished_fibers[t]) {
        ++running;
        threadIdx.x = t;
        swapcontext(&scheduler, &fibers[t]);
      }
    }
  }
  return n_errors;
}
"""


@dataclasses.dataclass(frozen=True, slots=True)
class Counts:
    """What a run did: instructions of warps, copies to shared memory and their bytes (padding
    included), bytes loaded from there by ldmatrix."""

    mma: int
    copies: int
    copied_bytes: int
    loaded_bytes: int


def counts(library: ctypes.CDLL) -> Counts:
    """Of all runs of a library so far."""
    return Counts(*(ctypes.c_longlong * 4).in_dll(library, "counts"))


def build(
    program: GeneratedProgram, problem: GemmProblem, folder: pathlib.Path, kind: str = "mma"
) -> ctypes.CDLL:
    """The program's kernels as a library for `run`.

    Args:
        kind: of tensor cores; "simt" of threads, whose multiply-adds are `Counts.mma`; or "gemv",
            which neither copies to shared memory nor counts.
    """
    is_half = problem.a.dtype == "float16"
    value = "float_of_half(bits)" if is_half else "__uint_as_float(u32(bits) << 16)"
    device_of, host = {
        "mma": (instructions.device_functions, _TENSOR_CORES.replace("OPERAND_VALUE", value)),
        "simt": (simt_program.device_functions, _THREADS),
        "gemv": (instructions.conversions, ""),
    }[kind]
    device = device_of(problem)
    assert device in program.source
    cases = "".join(
        f"case {number}: {launch.kernel}({_pointers(launch)}); break; "
        for number, launch in enumerate(program.plan.launches)
    )
    body = program.source.replace(device, _INSTRUCTIONS + host)
    text = _RUNTIME + body + _LAUNCHES.replace("KERNELS", cases)
    library = folder / f"{program.fingerprint}.so"
    command = ["cc", "-w", "-O1", "-std=c++17", "-shared", "-fPIC", "-x", "c++", "-"]
    subprocess.run([*command, "-o", str(library), "-lm"], input=text, text=True, check=True)
    return ctypes.CDLL(str(library))


def _pointers(launch: Launch) -> str:
    return ", ".join(f"Pointer{{arguments[{i}]}}" for i in range(len(launch.args)))


def run(
    library: ctypes.CDLL, program: GeneratedProgram, arrays: Sequence[Array], *, late: bool
) -> int:
    """Play the plan on the parameters' arrays; how many instructions were misused.

    Args:
        late: copies to shared memory arrive when they are waited for, else at once.
    """
    spaces = [np.full(size, 0xFF, np.uint8) for size in program.plan.workspaces]
    tensors = [*arrays, *spaces]
    errors = 0
    for number, launch in enumerate(program.plan.launches):
        addresses = [tensors[arg].ctypes.data for arg in launch.args if isinstance(arg, int)]
        pointers = (ctypes.c_void_p * len(addresses))(*addresses)
        blocks, threads = launch.extents[0], launch.extents[3]
        errors += int(library.launch(number, blocks, threads, int(late), pointers))
    return errors
