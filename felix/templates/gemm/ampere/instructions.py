"""Element types, the mma.sync instructions that multiply them, and C++ for them: what it has no
words for, as device functions.

copy_async<BYTES>(to, from, valid)      copies `valid` bytes to shared memory, zeros up to BYTES
commit_copies()                         makes the thread's copies since the last call a group
wait_for_copies<PENDING>()              until all but its last `PENDING` groups have arrived
load_matrices(to, row)                  ldmatrix: lane 8 i + r has the address of row r, 16
                                        bytes, of matrix i; to[i] becomes row lane / 4, bytes
                                        4 (lane % 4) to 4 (lane % 4) + 3, of matrix i
load_transposed_matrices(to, row)       the same of the matrices' transposes, 16-bit elements
mma(sums, a, b0, b1)                    sums += a · b of a warp
float_of_half, half_of, bfloat16_of, float_of_e4m3, e4m3_of     round to nearest even; what float8
                                        cannot hold is infinite, or NaN in e4m3, as in PyTorch
"""

from __future__ import annotations

import dataclasses

from felix.templates.gemm.problem import GemmProblem

#: Bytes of k that one instruction multiplies, whatever the type.
INSTRUCTION_K_BYTES = 32


@dataclasses.dataclass(frozen=True, slots=True)
class Instruction:
    """mma.sync of a pair of operands: 16 rows of A by 8 columns of B.

    Attributes:
        k: elements of the sum of one instruction.
        suffix: its shape and types, as in PTX.
        has_transposes: operands may be contiguous along rows or columns; ldmatrix transposes
            elements of 16 bits alone.
    """

    k: int
    suffix: str
    has_transposes: bool


def _of(types: str, bits: int) -> Instruction:
    k = 8 * INSTRUCTION_K_BYTES // bits
    return Instruction(k, f"m16n8k{k}.row.col.{types}", bits == 16)


#: By the dtypes of both operands. float32 is multiplied in TF32; float8 needs sm_89.
INSTRUCTIONS: dict[tuple[str, str], Instruction] = {
    ("bfloat16", "bfloat16"): _of("f32.bf16.bf16.f32", 16),
    ("float16", "float16"): _of("f32.f16.f16.f32", 16),
    ("float32", "float32"): _of("f32.tf32.tf32.f32", 32),
    ("float8_e4m3fn", "float8_e4m3fn"): _of("f32.e4m3.e4m3.f32", 8),
    ("float8_e5m2", "float8_e5m2"): _of("f32.e5m2.e5m2.f32", 8),
    ("int8", "int8"): _of("s32.s8.s8.s32", 8),
    ("uint8", "uint8"): _of("s32.u8.u8.s32", 8),
    ("int8", "uint8"): _of("s32.s8.u8.s32", 8),
    ("uint8", "int8"): _of("s32.u8.s8.s32", 8),
}


@dataclasses.dataclass(frozen=True, slots=True)
class Storage:
    """A type in memory.

    Attributes:
        c_type: in C++.
        size_bytes: of an element.
        widen: how a value `{0}` becomes one of arithmetic, float or int, by functions below.
        narrow: how a value of arithmetic becomes one in memory.
    """

    c_type: str
    size_bytes: int
    widen: str
    narrow: str


STORAGE: dict[str, Storage] = {
    "bfloat16": Storage("u16", 2, "__uint_as_float(u32({0}) << 16)", "bfloat16_of({0})"),
    "float16": Storage("u16", 2, "float_of_half({0})", "half_of({0})"),
    "float32": Storage("float", 4, "{0}", "float({0})"),
    "float8_e4m3fn": Storage("u8", 1, "float_of_e4m3({0})", "e4m3_of({0})"),
    "float8_e5m2": Storage("u8", 1, "float_of_e5m2({0})", "e5m2_of({0})"),
    "int8": Storage("signed char", 1, "int({0})", "(signed char)(int({0}))"),
    "uint8": Storage("u8", 1, "int({0})", "u8(int({0}))"),
    "int16": Storage("short", 2, "int({0})", "short(int({0}))"),
    "uint16": Storage("u16", 2, "int({0})", "u16(int({0}))"),
    "int32": Storage("int", 4, "{0}", "int({0})"),
    "bool": Storage("u8", 1, "int({0})", "u8(bool({0}))"),
}

#: Arithmetic's type by that of sums, and by whether a tensor holds floats.
FLOAT, INT = "float", "int"


def arithmetic(dtype: str) -> str:
    """What values of a dtype are computed as."""
    return FLOAT if dtype.startswith(("float", "bfloat")) else INT


#: Names of types in the text.
TYPES = """\
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
"""

#: Conversions that all architectures have.
_CONVERSIONS = """
__device__ __forceinline__ float float_of_half(u16 value) {
  float result;
  asm("cvt.f32.f16 %0, %1;" : "=f"(result) : "h"(value));
  return result;
}
__device__ __forceinline__ u16 half_of(float value) {
  u16 result;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(result) : "f"(value));
  return result;
}
__device__ __forceinline__ u16 bfloat16_of(float value) {
  u16 result;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(result) : "f"(value));
  return result;
}
"""

#: And those that sm_89 and later have.
_CONVERSIONS_OF_FLOAT8 = """
__device__ __forceinline__ float float_of_e4m3(u8 value) {
  u32 halves;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(u16(value)));
  return float_of_half(u16(halves));
}
__device__ __forceinline__ u8 e4m3_of(float value) {
  if (fabsf(value) > 464.0f) return value < 0.0f ? 0xff : 0x7f;
  u16 pair;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(0.0f), "f"(value));
  return u8(pair);
}
__device__ __forceinline__ float float_of_e5m2(u8 value) { return float_of_half(u16(value) << 8); }
__device__ __forceinline__ u8 e5m2_of(float value) {
  if (fabsf(value) >= 61440.0f) return value < 0.0f ? 0xfc : 0x7c;
  u16 pair;
  asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(0.0f), "f"(value));
  return u8(pair);
}
"""

#: Of shared memory, asynchronous.
COPIES = """
__device__ __forceinline__ u32 shared_address(const void* pointer) {
  return u32(__cvta_generic_to_shared(pointer));
}
template <int BYTES>
__device__ __forceinline__ void copy_async(void* to, const void* from, int valid) {
  if constexpr (BYTES == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 :: "r"(shared_address(to)), "l"(from), "r"(valid) : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;"
                 :: "r"(shared_address(to)), "l"(from), "n"(BYTES), "r"(valid) : "memory");
  }
}
__device__ __forceinline__ void commit_copies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int PENDING>
__device__ __forceinline__ void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" :: "n"(PENDING) : "memory");
}
"""

_MATRICES = """\
__device__ __forceinline__ void load_matrices(u32 (&to)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(shared_address(row)) : "memory");
}
__device__ __forceinline__ void load_transposed_matrices(u32 (&to)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(shared_address(row)) : "memory");
}
"""

_MMA = """
__device__ __forceinline__ void mma(Sum (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {{
  asm("mma.sync.aligned.{suffix} {{%0, %1, %2, %3}}, {{%4, %5, %6, %7}}, {{%8, %9}}, "
      "{{%0, %1, %2, %3}};"
      : "+{constraint}"(d[0]), "+{constraint}"(d[1]), "+{constraint}"(d[2]), "+{constraint}"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}}
"""


def device_functions(problem: GemmProblem) -> str:
    """The device functions for a problem."""
    instruction = INSTRUCTIONS[problem.a.dtype, problem.b.dtype]
    constraint = "f" if problem.accumulator == "float32" else "r"
    mma = _MMA.format(suffix=instruction.suffix, constraint=constraint)
    return conversions(problem) + COPIES + _MATRICES + mma


def conversions(problem: GemmProblem) -> str:
    """Those of the problem's tensors."""
    return _CONVERSIONS + (_CONVERSIONS_OF_FLOAT8 if uses_float8(problem) else "")


def uses_float8(problem: GemmProblem) -> bool:
    """Whether a tensor holds float8, which sm_89 is the first to convert."""
    dtypes_of = [problem.a.dtype, problem.b.dtype, problem.output.dtype]
    dtypes_of += [read.dtype for read in problem.epilogue.reads]
    return any(dtype.startswith("float8") for dtype in dtypes_of)


def number(arch: str) -> int:
    """86 of an architecture like "sm_86"."""
    return int(arch.removeprefix("sm_").rstrip("af"))
