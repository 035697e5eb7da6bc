"""A kernel that makes one copy by TMA in im2col mode and writes out what shared memory then has.

It waits for a bounded time, so a copy that brings fewer bytes than documented does not hang. It
runs in a process of its own, whose context an illegal access may spoil.
"""

from __future__ import annotations

import concurrent.futures
import ctypes
import dataclasses
import math
import multiprocessing
from typing import Any

import numpy as np
from numpy.typing import NDArray

from felix.launch_plan import TensorMap
from felix.runner.cuda import driver, nvrtc

ARCH = "sm_90a"
_BLOCK_THREADS = 128
_SOURCE = """
struct __align__(64) TensorMap {{ unsigned char bytes[128]; }};

extern "C" __global__ void copy_once(const __grid_constant__ TensorMap map, unsigned char* out,
                                     int* timed_out) {{
  extern __shared__ __align__(1024) unsigned char memory[];
  const unsigned base = (unsigned)__cvta_generic_to_shared(memory);
  const unsigned barrier = base + {bytes};
  for (int i = threadIdx.x; i < {bytes}; i += blockDim.x) memory[i] = 0xee;
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  if (threadIdx.x == 0) {{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" :: "r"(barrier));
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async;" ::: "memory");
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], {bytes};" :: "r"(barrier));
  }}
  asm volatile("barrier.cluster.arrive.release;\\nbarrier.cluster.wait.acquire;" ::: "memory");
  if (threadIdx.x == 0 && blockIdx.x == 0)
    asm volatile(
        "cp.async.bulk.tensor.{rank}d.shared::cluster.global.im2col"
        ".mbarrier::complete_tx::bytes{multicast} [%0], [%1, {{{places}}}], [%2], {{{offsets}}}{mask};"
        :: "r"(base), "l"(&map), "r"(barrier){operands} : "memory");
  int done = 0;
  for (int tries = 0; tries < 2000000 && !done; ++tries)
    asm volatile(
        "{{ .reg .pred p; mbarrier.test_wait.parity.shared::cta.b64 p, [%1], 0; "
        "selp.s32 %0, 1, 0, p; }}"
        : "=r"(done) : "r"(barrier) : "memory");
  if (!done) atomicAdd(timed_out, 1);
  for (int i = threadIdx.x; i < {bytes}; i += blockDim.x) out[blockIdx.x * {bytes} + i] = memory[i];
  asm volatile("barrier.cluster.arrive.release;\\nbarrier.cluster.wait.acquire;" ::: "memory");
}}
"""  # noqa: E501


@dataclasses.dataclass(frozen=True)
class Copy:
    """One copy: `at` is channel, place in each spatial dimension innermost first, and image.

    With `blocks` more than 1, the first block of a cluster copies to all of them.
    """

    tensor_map: TensorMap
    at: tuple[int, ...]
    offsets: tuple[int, ...]
    blocks: int = 1

    @property
    def n_bytes(self) -> int:
        return math.prod(self.tensor_map.box) * np.dtype("float32").itemsize

    def source(self) -> str:
        """CUDA C++ of the kernel; elements are float32."""
        rank = len(self.at)
        numbers = [f'"r"({a})' for a in self.at]
        numbers += [f'"h"((unsigned short){offset})' for offset in self.offsets]
        if self.blocks > 1:
            numbers.append(f'"h"((unsigned short){(1 << self.blocks) - 1})')
        return _SOURCE.format(
            bytes=self.n_bytes,
            rank=rank,
            multicast=".multicast::cluster" if self.blocks > 1 else "",
            places=", ".join(f"%{3 + i}" for i in range(rank)),
            offsets=", ".join(f"%{3 + rank + i}" for i in range(rank - 2)),
            mask=f", %{1 + 2 * rank}" if self.blocks > 1 else "",
            operands="".join(f", {number}" for number in numbers),
        )

    def run(self, memory: NDArray[Any]) -> NDArray[Any] | str:
        """Bytes of shared memory, [block][byte], after the copy from a tensor of `memory`.

        A text says what went wrong.
        """
        spawn = multiprocessing.get_context("spawn")
        with concurrent.futures.ProcessPoolExecutor(1, mp_context=spawn) as pool:
            return pool.submit(_run, self, memory).result()

    def run_here(self, context: driver.Context, memory: NDArray[Any]) -> NDArray[Any] | str:
        """What `run` gives, in this process."""
        sizes = memory.nbytes, self.blocks * self.n_bytes, 4
        tensor, out, flag = addresses = [context.allocate(size) for size in sizes]
        context.upload(tensor, memory)
        context.fill(flag, 0, 4)
        with context.loaded(nvrtc.compile_cubin(self.source(), ARCH)) as module:
            args = [
                driver.encoded(driver.libcuda(), self.tensor_map, tensor),
                ctypes.c_uint64(out),
                ctypes.c_uint64(flag),
            ]
            extents = (self.blocks, 1, 1, _BLOCK_THREADS, 1, 1)
            kernel = context.kernel(
                module, "copy_once", extents, args, self.n_bytes + 8, (self.blocks, 1, 1)
            )
            context.launch(kernel)
            context.synchronize()
            timed_out = int(context.download(flag, np.empty(1, np.int32))[0])
            result = np.empty((self.blocks, self.n_bytes), np.uint8)
            context.download(out, result)
        for address in addresses:
            context.free(address)
        return "the copy brought fewer bytes than its box has" if timed_out else result


def _run(copy: Copy, memory: NDArray[Any]) -> NDArray[Any] | str:
    try:
        return copy.run_here(driver.Context(), memory)
    except driver.DriverError as error:
        return str(error)
