"""Element types: their sizes, the wgmma instructions that multiply them, and C++ for them; and
device functions for what C++ has no words for: barriers, copies by TMA, wgmma.
"""

from __future__ import annotations

import dataclasses

from felix.templates.gemm.ampere.instructions import TYPES, Storage


@dataclasses.dataclass(frozen=True, slots=True)
class Product:
    """The wgmma instruction of a pair of operands.

    Attributes:
        k: elements of the sum of one instruction; always 32 bytes.
        suffix: its types, as in PTX.
        has_signs: immediates that negate operands are part of the instruction.
        has_transposes: operands may be contiguous along rows or columns (MN-major).
        flops_per_cycle: of an SM, dense; a multiply-add counts two. Data sheet of the H100.
    """

    k: int
    suffix: str
    has_signs: bool
    has_transposes: bool
    flops_per_cycle: int


#: By the dtype of both operands, with the accumulator's dtype. float32 operands are rounded to
#: TF32 by the tensor cores.
PRODUCTS: dict[tuple[str, str], Product] = {
    ("bfloat16", "float32"): Product(16, "f32.bf16.bf16", True, True, 4096),
    ("float16", "float32"): Product(16, "f32.f16.f16", True, True, 4096),
    ("float32", "float32"): Product(8, "f32.tf32.tf32", True, False, 2048),
    ("float8_e4m3fn", "float32"): Product(32, "f32.e4m3.e4m3", True, False, 8192),
    ("float8_e5m2", "float32"): Product(32, "f32.e5m2.e5m2", True, False, 8192),
    ("int8", "int32"): Product(32, "s32.s8.s8", False, False, 8192),
}

#: By dtype; `CONVERSIONS` has the functions that it names.
STORAGE: dict[str, Storage] = {
    "bfloat16": Storage(
        "u16", 2, "__uint_as_float(static_cast<u32>({0}) << 16)", "float_to_bfloat({0})"
    ),
    "float16": Storage("u16", 2, "half_to_float({0})", "float_to_half({0})"),
    "float32": Storage("float", 4, "{0}", "static_cast<float>({0})"),
    "int32": Storage("int", 4, "{0}", "static_cast<int>({0})"),
    "int8": Storage("signed char", 1, "static_cast<int>({0})", "static_cast<signed char>({0})"),
    "float8_e4m3fn": Storage("u8", 1, "e4m3_to_float({0})", "float_to_e4m3({0})"),
    "float8_e5m2": Storage("u8", 1, "e5m2_to_float({0})", "float_to_e5m2({0})"),
}


#: The type of sums in registers.
ACCUMULATOR = {"float32": "float", "int32": "int"}

#: Device functions that `STORAGE` names.
CONVERSIONS = """
__device__ __forceinline__ float half_to_float(u16 value) {
  float result;
  asm("cvt.f32.f16 %0, %1;" : "=f"(result) : "h"(value));
  return result;
}
__device__ __forceinline__ u16 float_to_half(float value) {
  u16 result;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(result) : "f"(value));
  return result;
}
__device__ __forceinline__ u16 float_to_bfloat(float value) {
  u16 result;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(result) : "f"(value));
  return result;
}
__device__ __forceinline__ float e4m3_to_float(u8 value) {
  u32 halves;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(static_cast<u16>(value)));
  return half_to_float(static_cast<u16>(halves));
}
__device__ __forceinline__ u8 float_to_e4m3(float value) {
  if (fabsf(value) > 464.0f) return value < 0.0f ? 0xff : 0x7f;
  u16 pair;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(0.0f), "f"(value));
  return static_cast<u8>(pair);
}
__device__ __forceinline__ float e5m2_to_float(u8 value) {
  u32 halves;
  asm("cvt.rn.f16x2.e5m2x2 %0, %1;" : "=r"(halves) : "h"(static_cast<u16>(value)));
  return half_to_float(static_cast<u16>(halves));
}
__device__ __forceinline__ u8 float_to_e5m2(float value) {
  if (fabsf(value) >= 61440.0f) return value < 0.0f ? 0xfc : 0x7c;
  u16 pair;
  asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(0.0f), "f"(value));
  return static_cast<u8>(pair);
}
"""

PRELUDE = TYPES + "struct alignas(64) TensorMap { u8 bytes[128]; };\n"

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
    product: Product, accumulator: str, columns: int, is_a_k_major: bool, is_b_k_major: bool
) -> str:
    """Functions around wgmma of 64 x `columns`: `multiply` and the fences.

    `multiply(sums, a, b, adds)` has sums = (adds ? sums : 0) + a · b for descriptors a and b.
    """
    n_sums = columns // 2
    kind, letter = ACCUMULATOR[accumulator], "f" if accumulator == "float32" else "r"
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
