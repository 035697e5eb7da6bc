"""Element types: their sizes, the wgmma instructions that multiply them, and C++ for them."""

from __future__ import annotations

import dataclasses

_BYTES = {
    "bfloat16": 2,
    "float16": 2,
    "float32": 4,
    "int32": 4,
    "int8": 1,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
}


def size_bytes(dtype: str) -> int:
    """Of an element."""
    return _BYTES[dtype]


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

#: Types in memory.
STORAGE = {
    "bfloat16": "u16",
    "float16": "u16",
    "float32": "float",
    "int32": "int",
    "int8": "signed char",
    "float8_e4m3fn": "u8",
    "float8_e5m2": "u8",
}

#: How a value in memory becomes one of arithmetic: float, or int for integers.
WIDEN = {
    "bfloat16": "__uint_as_float(static_cast<u32>({0}) << 16)",
    "float16": "half_to_float({0})",
    "float32": "{0}",
    "int32": "{0}",
    "int8": "static_cast<int>({0})",
    "float8_e4m3fn": "e4m3_to_float({0})",
    "float8_e5m2": "e5m2_to_float({0})",
}

#: How a value of arithmetic becomes one in memory.
NARROW = {
    "bfloat16": "float_to_bfloat({0})",
    "float16": "float_to_half({0})",
    "float32": "static_cast<float>({0})",
    "int32": "static_cast<int>({0})",
    "int8": "static_cast<signed char>({0})",
    "float8_e4m3fn": "float_to_e4m3({0})",
    "float8_e5m2": "float_to_e5m2({0})",
}

#: The type of sums in registers.
ACCUMULATOR = {"float32": "float", "int32": "int"}

#: Device functions that `WIDEN` and `NARROW` name.
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
  u16 pair;
  asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(0.0f), "f"(value));
  return static_cast<u8>(pair);
}
"""
