"""A task's tensors: read into main memory, which disturbs nobody, then put on the device and
compared there."""

from __future__ import annotations

import ctypes
import dataclasses
import math
import pathlib
from collections.abc import Sequence

import numpy as np

from felix import errors, files
from felix.runner import description
from felix.runner.checking import reference
from felix.runner.cuda import driver, nvrtc


@dataclasses.dataclass(frozen=True, slots=True)
class Output:
    """An output of a task: the address of what is expected, and how it is compared."""

    index: int
    expected: int
    count: int
    kind: int
    rms: float


@dataclasses.dataclass(frozen=True, slots=True)
class DeviceTask:
    """A task on the device. `fresh` has a copy of each argument that a run changes."""

    folder: str
    args: tuple[reference.Argument, ...]
    tensors: tuple[int, ...]
    fresh: dict[int, int]
    outputs: tuple[Output, ...]
    relative: float


def place(
    context: driver.Context, task: description.StoredTask, arrays: Sequence[reference.Array]
) -> DeviceTask:
    """Put a task on the device; `arrays` has the contents of each argument before a run."""
    args, expected = task.args, task.expected
    tensors, fresh = upload(context, args, arrays)
    outputs = []
    for index, array in expected.outputs.items():
        pointer = context.allocate(array.nbytes)
        context.upload(pointer, array)
        kind = KINDS.get(args[index].dtype, 0)
        count = array.size if kind else array.nbytes
        outputs.append(Output(index, pointer, count, kind, expected.rms[index]))
    relative = task.description.tolerance
    return DeviceTask(task.folder, args, tensors, fresh, tuple(outputs), relative)


def upload(
    context: driver.Context, args: Sequence[reference.Argument], arrays: Sequence[reference.Array]
) -> tuple[tuple[int, ...], dict[int, int]]:
    """Put the arguments on the device, a second time what a run reads and changes."""
    tensors: list[int] = []
    fresh: dict[int, int] = {}
    for index, (arg, array) in enumerate(zip(args, arrays, strict=True)):
        tensors.append(context.allocate(array.nbytes))
        context.upload(tensors[-1], array)
        if arg.is_input and arg.is_output:
            fresh[index] = context.allocate(array.nbytes)
            context.upload(fresh[index], array)
    return tuple(tensors), fresh


def free(context: driver.Context, task: DeviceTask) -> None:
    """Give back what `place` took."""
    for pointer in (*task.tensors, *task.fresh.values(), *(o.expected for o in task.outputs)):
        context.free(pointer)


def size(arg: reference.Argument) -> int:
    """Bytes of an argument."""
    return math.prod(arg.shape) * reference.np_dtype(arg.dtype).itemsize


# Helper kernels of the CUDA run worker, as source and as launches.
#
# - *sweep* reads through a buffer of twice the L2, which leaves the cache cold and clean (writing
# through it would leave dirty lines that the measured kernel then has to write back);
# - *compare* counts elements that differ from the expected output, by the rule of `reference`;
# - *probe* runs a fixed chain of multiply-adds on every SM: its time is the inverse of the clock's
# frequency (`clock`), and a number of them keeps the device busy.

SOURCE = """
typedef unsigned long long u64;

extern "C" __global__ void felix_sweep(const uint4* data, u64 n, unsigned* sink) {
  unsigned bits = 0;
  u64 step = (u64)gridDim.x * blockDim.x;
  for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step) {
    uint4 v = data[i];
    bits ^= v.x ^ v.y ^ v.z ^ v.w;
  }
  if (bits == 0x9e3779b9u) *sink = bits;
}

extern "C" __global__ void felix_probe(float* out, int n) {
  float x = out[threadIdx.x];
  for (int i = 0; i < n; ++i) x = fmaf(x, 0.9999f, 1e-6f);
  if (x == 123.0f) out[threadIdx.x] = x;
}

// e4m3fn: a bias of 7, no infinity, and NaN where all bits but the sign are set.
__device__ float of_e4m3fn(unsigned char bits) {
  int exponent = bits >> 3 & 15, fraction = bits & 7;
  float f = exponent ? ldexpf(8 + fraction, exponent - 10) : ldexpf(fraction, -9);
  if ((bits & 127) == 127) f = __int_as_float(0x7fffffff);
  return bits & 128 ? -f : f;
}

__device__ double value(const void* data, u64 i, int kind) {
  if (kind == 1) return ((const float*)data)[i];
  if (kind == 2) return ((const double*)data)[i];
  if (kind == 5) return of_e4m3fn(((const unsigned char*)data)[i]);
  unsigned short bits = kind == 6 ? ((const unsigned char*)data)[i] << 8
                                  : ((const unsigned short*)data)[i];
  if (kind == 4) return __uint_as_float((unsigned)bits << 16);
  float f;
  asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(bits));
  return f;
}

extern "C" __global__ void felix_compare(const void* got, const void* want, u64 n, double relative,
                                         double rms, int kind, u64* result) {
  u64 step = (u64)gridDim.x * blockDim.x;
  for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step) {
    bool same;
    if (kind == 0) {
      same = ((const unsigned char*)got)[i] == ((const unsigned char*)want)[i];
    } else {
      double g = value(got, i, kind), w = value(want, i, kind);
      bool finite = fabs(w) <= 1.7976931348623157e308;
      same = finite ? fabs(g - w) <= relative * (fabs(w) + rms) : g == w || (g != g && w != w);
    }
    if (!same) {
      atomicAdd(result, 1ull);
      atomicMin(result + 1, i);
    }
  }
}
"""
#: dtype -> kind of `felix_compare`; others are compared byte by byte if they are no floats.
KINDS = {
    "float32": 1,
    "float64": 2,
    "float16": 3,
    "bfloat16": 4,
    "float8_e4m3fn": 5,
    "float8_e5m2": 6,
}
_PROBE_STEPS = 16_000
_CHECKED_BYTES = 256


class Helpers:
    """The helper kernels on a context."""

    def __init__(self, context: driver.Context, folder: pathlib.Path) -> None:
        self._context = context
        self._module = context.load(cubin(context.arch, folder))
        words = context.l2_bytes * 2 // 16
        swept = context.allocate(words * 16)
        context.fill(swept, 0, words * 16)
        self._scratch = context.allocate(4096)
        context.fill(self._scratch, 0, 4096)
        self._sweep = context.kernel(
            self._module,
            "felix_sweep",
            (528, 1, 1, 512, 1, 1),
            [ctypes.c_uint64(swept), ctypes.c_uint64(words), ctypes.c_uint64(self._scratch)],
        )
        self._probe = context.kernel(
            self._module,
            "felix_probe",
            (context.multiprocessors, 1, 1, 128, 1, 1),
            [ctypes.c_uint64(self._scratch), ctypes.c_int(_PROBE_STEPS)],
        )
        self._events = (context.event(), context.event())

    def check(self) -> None:
        """Allocate, fill, copy, launch and time something small.

        Raises:
            DriverError: the driver refuses it.
            MeasureError: the result is wrong.
        """
        context, count = self._context, _CHECKED_BYTES
        first, second = context.allocate(count), context.allocate(count)
        context.fill(first, 0, count)
        context.fill(second, 1, count)
        differ, _ = self.mismatches(first, second, count, 0.0, 0.0, kind=0)
        context.copy(first, second, count)
        differ_still, _ = self.mismatches(first, second, count, 0.0, 0.0, kind=0)
        self.sweep()
        self.probe_us()
        context.free(first)
        context.free(second)
        if differ == 0 or differ_still != 0:
            raise errors.MeasureError("the GPU's results are wrong")

    def sweep(self) -> None:
        """Make the L2 cold."""
        self._context.launch(self._sweep)

    def delay(self, count: int) -> None:
        """Keep the device busy for `count` probes."""
        for _ in range(count):
            self._context.launch(self._probe)

    def probe_us(self) -> float:
        """Time of one probe; another one before it keeps the CPU's launches out of it."""
        start, end = self._events
        self._context.launch(self._probe)
        self._context.record(start)
        self._context.launch(self._probe)
        self._context.record(end)
        self._context.synchronize()
        return self._context.elapsed_us(start, end)

    def mismatches(
        self, actual: int, expected: int, count: int, relative: float, rms: float, kind: int
    ) -> tuple[int, int]:
        """How many of `count` elements (bytes for kind 0) differ, and which is the first."""
        result = np.array([0, 2**63], dtype=np.uint64)
        self._context.upload(self._scratch, result)
        args = [
            ctypes.c_uint64(actual),
            ctypes.c_uint64(expected),
            ctypes.c_uint64(count),
            ctypes.c_double(relative),
            ctypes.c_double(rms),
            ctypes.c_int(kind),
            ctypes.c_uint64(self._scratch),
        ]
        blocks = max(1, min(1056, -(-count // 256)))
        kernel = self._context.kernel(
            self._module, "felix_compare", (blocks, 1, 1, 256, 1, 1), args
        )
        self._context.launch(kernel)
        self._context.synchronize()
        differ, first = self._context.download(self._scratch, result)
        return int(differ), int(first)


def cubin(arch: str, folder: pathlib.Path) -> bytes:
    """The helpers' cubin, compiled once for all workers of a pool."""
    path = folder / f"helpers-{arch}.cubin"
    if not path.exists():
        data = nvrtc.compile_cubin(SOURCE, arch, options=())
        files.write_atomically(path, data, durable=False)
    return path.read_bytes()
