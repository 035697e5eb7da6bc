"""Device functions for what C++ has no words for: barriers, copies by TMA, wgmma."""

from __future__ import annotations

from felix.templates.gemm.hopper import dtypes

PRELUDE = """\
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
struct alignas(64) TensorMap { u8 bytes[128]; };
"""

BARRIERS = """
__device__ __forceinline__ u32 shared_address(const void* pointer) {
  return static_cast<u32>(__cvta_generic_to_shared(pointer));
}
__device__ __forceinline__ void barrier_init(u32 barrier, u32 arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(barrier), "r"(arrivals));
}
__device__ __forceinline__ void barrier_wait(u32 barrier, u32 parity) {
  asm volatile(
      "{\\n.reg .pred done;\\nagain:\\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\\n"
      "@!done bra again;\\n}" :: "r"(barrier), "r"(parity) : "memory");
}
__device__ __forceinline__ void barrier_expect(u32 barrier, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
               :: "r"(barrier), "r"(bytes) : "memory");
}
__device__ __forceinline__ void barrier_arrive(u32 barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(barrier) : "memory");
}
__device__ __forceinline__ u32 address_in_block(u32 address, u32 rank) {
  u32 remote;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(address), "r"(rank));
  return remote;
}
__device__ __forceinline__ void barrier_arrive_in_cluster(u32 barrier) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];"
               :: "r"(barrier) : "memory");
}
__device__ __forceinline__ void cluster_sync() {
  asm volatile("barrier.cluster.arrive.release;\\nbarrier.cluster.wait.acquire;" ::: "memory");
}
__device__ __forceinline__ void threads_sync(int barrier, int threads) {
  asm volatile("bar.sync %0, %1;" :: "r"(barrier), "r"(threads) : "memory");
}
__device__ __forceinline__ void threads_arrive(int barrier, int threads) {
  asm volatile("bar.arrive %0, %1;" :: "r"(barrier), "r"(threads) : "memory");
}
"""

#: Of three dimensions, and of four where the batch has two axes.
COPIES = """
__device__ __forceinline__ void prefetch_map(const TensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" :: "l"(&map) : "memory");
}
__device__ __forceinline__ void copy_in(u32 to, const TensorMap& map, u32 barrier,
                                        int x, int y, int z) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      " [%0], [%1, {%3, %4, %5}], [%2];"
      :: "r"(to), "l"(&map), "r"(barrier), "r"(x), "r"(y), "r"(z) : "memory");
}
__device__ __forceinline__ void copy_in_to_all(u32 to, const TensorMap& map, u32 barrier,
                                               int x, int y, int z, u16 blocks) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      ".multicast::cluster [%0], [%1, {%3, %4, %5}], [%2], %6;"
      :: "r"(to), "l"(&map), "r"(barrier), "r"(x), "r"(y), "r"(z), "h"(blocks) : "memory");
}
__device__ __forceinline__ void copy_out(const TensorMap& map, u32 from, int x, int y, int z) {
  asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.tile.bulk_group"
               " [%0, {%2, %3, %4}], [%1];"
               :: "l"(&map), "r"(from), "r"(x), "r"(y), "r"(z) : "memory");
}
__device__ __forceinline__ void copy_in(u32 to, const TensorMap& map, u32 barrier,
                                        int x, int y, int z, int w) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      " [%0], [%1, {%3, %4, %5, %6}], [%2];"
      :: "r"(to), "l"(&map), "r"(barrier), "r"(x), "r"(y), "r"(z), "r"(w) : "memory");
}
__device__ __forceinline__ void copy_in_to_all(u32 to, const TensorMap& map, u32 barrier,
                                               int x, int y, int z, int w, u16 blocks) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      ".multicast::cluster [%0], [%1, {%3, %4, %5, %6}], [%2], %7;"
      :: "r"(to), "l"(&map), "r"(barrier), "r"(x), "r"(y), "r"(z), "r"(w), "h"(blocks)
      : "memory");
}
__device__ __forceinline__ void copy_out(const TensorMap& map, u32 from, int x, int y, int z,
                                         int w) {
  asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group"
               " [%0, {%2, %3, %4, %5}], [%1];"
               :: "l"(&map), "r"(from), "r"(x), "r"(y), "r"(z), "r"(w) : "memory");
}
__device__ __forceinline__ void copies_out_commit() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
template <int PENDING> __device__ __forceinline__ void copies_out_wait() {
  asm volatile("cp.async.bulk.wait_group.read %0;" :: "n"(PENDING) : "memory");
}
__device__ __forceinline__ void shared_writes_visible_to_copies() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
"""

_WGMMA = """
__device__ __forceinline__ void wgmma_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int PENDING> __device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" :: "n"(PENDING) : "memory");
}
"""


def wgmma(
    product: dtypes.Product, accumulator: str, columns: int, is_a_k_major: bool, is_b_k_major: bool
) -> str:
    """Functions around wgmma of 64 x `columns`: `multiply` and the fences.

    `multiply(sums, a, b, adds)` has sums = (adds ? sums : 0) + a · b for descriptors a and b.
    """
    n_sums = columns // 2
    kind, letter = dtypes.ACCUMULATOR[accumulator], "f" if accumulator == "float32" else "r"
    registers = ", ".join(f"%{i}" for i in range(n_sums))
    immediates = ", 1, 1" if product.has_signs else ""
    if product.has_transposes:
        immediates += f", {int(not is_a_k_major)}, {int(not is_b_k_major)}"
    outputs = ", ".join(f'"+{letter}"(sums[{i}])' for i in range(n_sums))
    return (
        _WGMMA
        + f"""
__device__ __forceinline__ void multiply({kind} (&sums)[{n_sums}], u64 a, u64 b, int adds) {{
  asm volatile(
      "{{\\n.reg .pred adds;\\nsetp.ne.b32 adds, %{n_sums + 2}, 0;\\n"
      "wgmma.mma_async.sync.aligned.m64n{columns}k{product.k}.{product.suffix} "
      "{{{registers}}}, %{n_sums}, %{n_sums + 1}, adds{immediates};\\n}}"
      : {outputs}
      : "l"(a), "l"(b), "r"(adds));
}}
"""
    )
