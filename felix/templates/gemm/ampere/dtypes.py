"""Element types: the mma.sync instructions that multiply them, and C++ for them."""

from __future__ import annotations

import dataclasses

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
        widen: how a value `{0}` becomes one of arithmetic, float or int, by functions of `ptx`.
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
