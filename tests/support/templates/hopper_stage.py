"""A stage of the sm_90a GEMM: what copies leave in it, and where tensor cores look for elements.

The generated text of `copy_share` runs on the CPU; its instructions are written down instead of
executed, with the operands that their text names, and `tests.support.cuda.tma` does them.
"""

from __future__ import annotations

import ctypes
import dataclasses
import pathlib
import re
import subprocess
from typing import Any

import numpy as np
from numpy.typing import NDArray

from felix.launch_plan import TensorMap
from felix.templates.gemm.hopper import layout
from tests.support.cuda import tma

_WIDTHS = {1: 128, 2: 64, 3: 32}


def address(tile: layout.Tile, descriptor: int, start: int, line: int, k: int) -> int:
    """Where an instruction that begins at `start` looks for an element of its tile."""
    width = _WIDTHS[descriptor >> 62]
    stride, leading = (descriptor >> 32 & 0x3FFF) << 4, (descriptor >> 16 & 0x3FFF) << 4
    size = tile.element_bytes
    if tile.source.is_k_major:
        at = start + line // 8 * stride + line % 8 * width + k * size
    else:
        in_atom = width // size
        at = start + line // in_atom * leading + k // 8 * stride + k % 8 * width
        at += line % in_atom * size
    return tma.swizzled(at, width)


def line_offset(tile: layout.Tile, line: int) -> int:
    """Bytes from the tile's start to a line; a multiple of an atom or of a panel."""
    if tile.source.is_k_major:
        return line * tile.width
    return line // tile.inner * tile.panel_bytes


def k_offset(tile: layout.Tile, k: int) -> int:
    """Bytes from the tile's start to an element of the sum that an instruction begins at."""
    if tile.source.is_k_major:
        panel, inside = divmod(k, tile.inner)
        return panel * tile.panel_bytes + inside * tile.element_bytes
    return k * tile.width


# ---------------------------------------------------------------- the generated copies

_CPU = """
#define __device__
#define __forceinline__ inline
typedef unsigned char u8; typedef unsigned short u16; typedef unsigned int u32;
typedef unsigned long long u64;
struct TensorMap { int unused; };
static int* written;
static void note(int value) { *written++ = value; }
"""
_RUN = """
extern "C" int run(int is_a, int line, int k, int batch, int share, int* out) {
  TensorMap map;
  written = out;
  if (is_a) copy_share<A>(map, 0, 0, line, k, batch, share, 0x5a);
  else copy_share<B>(map, 0, 0, line, k, batch, share, 0x5a);
  return written - out;
}
"""
_ASM = re.compile(r'asm volatile\(\s*((?:"[^"]*"\s*)+):: (.*?) : "memory"\);', re.DOTALL)
_MOST_NUMBERS = 1 << 16


@dataclasses.dataclass(frozen=True)
class Instruction:
    """A copy as its text says: `at` are coordinates; `blocks` is the mask of a multicast."""

    is_im2col: bool
    to: int
    at: tuple[int, ...]
    offsets: tuple[int, ...]
    blocks: int | None


class Copies:
    """`copy_share` of a generated program of a convolution, compiled for the CPU."""

    def __init__(self, source: str, folder: pathlib.Path) -> None:
        constants = "".join(re.findall(r"^constexpr int \w+ = -?\d+;\n", source, re.MULTILINE))
        constants = "\n".join(dict.fromkeys(constants.splitlines()))
        first, last = source.index("struct A {"), source.index("struct B {")
        structs = source[first : source.index("\n};\n", last) + 4]
        begin = source.index("struct Start {")
        copies = source[begin : source.index("__device__ __forceinline__ void produce(")]
        library = folder / "copies.so"
        command = ["cc", "-w", "-O1", "-std=c++17", "-shared", "-fPIC", "-x", "c++", "-", "-o"]
        text = _CPU + constants + structs + _ASM.sub(_noted, copies) + _RUN
        subprocess.run([*command, str(library)], input=text, text=True, check=True)
        self._library = ctypes.CDLL(str(library))

    def share(self, is_a: bool, line: int, k: int, batch: int, share: int) -> list[Instruction]:
        """What a block starts for its share of a tile of A or of B."""
        numbers = (ctypes.c_int * _MOST_NUMBERS)()
        count = self._library.run(is_a, line, k, batch, share, numbers)
        values = iter(numbers[:count])
        result = []
        for is_im2col in values:
            lengths = next(values), next(values), next(values)
            to = next(values)
            at, offsets, mask = (tuple(next(values) for _ in range(n)) for n in lengths)
            result.append(Instruction(bool(is_im2col), to, at, offsets, mask[0] if mask else None))
        return result


def _noted(asm: re.Match[str]) -> str:
    """Statements that write an instruction down: what its text names, by the operands' numbers."""
    text = "".join(re.findall(r'"([^"]*)"', asm[1]))
    operands = re.findall(r'"[rlh]"\(((?:[^()]|\([^()]*\))*)\)', asm[2])
    shape = re.fullmatch(
        r"cp\.async\.bulk\.tensor\.(\d)d\.shared::cluster\.global\.(im2col|tile)"
        r"\.mbarrier::complete_tx::bytes(\.multicast::cluster)?"
        r" \[%0\], \[%1, \{([^}]*)\}\], \[%2\](?:, \{([^}]*)\})?(?:, (%\d+))?;",
        text,
    )
    assert shape is not None, text
    rank, mode, multicast, places, offsets, mask = shape.groups()

    def named(numbers: str | None) -> list[str]:
        return [operands[int(number)] for number in re.findall(r"%(\d+)", numbers or "")]

    assert len(named(places)) == int(rank) and bool(mask) == bool(multicast)
    assert len(named(offsets)) == (int(rank) - 2 if mode == "im2col" else 0)
    assert operands[:3] == ["to", "&map", "barrier"]
    lists = (named(places), named(offsets), named(mask))
    values = [str(int(mode == "im2col")), *(str(len(each)) for each in lists), "to"]
    return "".join(f"note({value});" for value in [*values, *lists[0], *lists[1], *lists[2]])


def stage(
    tile: layout.Tile, tensor_map: TensorMap, instructions: list[Instruction], memory: NDArray[Any]
) -> NDArray[Any]:
    """Bytes of a tile in shared memory after copies; -1 where nothing was written.

    Raises:
        AssertionError: a byte is written twice, or outside of the tile.
    """
    result = np.full(tile.total_bytes, -1)
    for each in instructions:
        if each.is_im2col:
            rows = tma.im2col_copy(tensor_map, memory, each.at, each.offsets)
        else:
            rows = tma.box_copy(tensor_map, memory, each.at)
        data = np.ascontiguousarray(rows).view(np.uint8).ravel()
        at = np.array(
            [tma.swizzled(each.to + i, tensor_map.swizzle_bytes) for i in range(0, data.size, 16)]
        )
        where = (at[:, None] + np.arange(16)).ravel()
        assert where.max() < result.size and (result[where] == -1).all()
        result[where] = data
    return result
