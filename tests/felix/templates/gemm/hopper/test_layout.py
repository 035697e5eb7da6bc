"""Tiles in shared memory: TMA's writes and the tensor cores' reads, emulated in numpy.

TMA writes a box row after row and swizzles 16-byte pieces by the address; a descriptor says where
the tensor cores look for an element (PTX ISA, "Matrix descriptor" and "Swizzling modes").
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from felix.templates.gemm.hopper import layout
from felix.templates.gemm.problem import Operand
from tests.support.cuda import tma
from tests.support.templates import hopper_stage


def _written(tile: layout.Tile, matrix: np.ndarray, line: int, k: int) -> dict[int, int]:
    """Address -> element of a stage after the copies of all sharers; 0 outside of the matrix."""
    result: dict[int, int] = {}
    outer, inner = matrix.shape
    for share in range(tile.sharers):
        for panel in range(tile.panels):
            start = panel * tile.panel_bytes + share * tile.share_rows * tile.width
            x0 = (k if tile.source.is_k_major else line) + panel * tile.inner
            y0 = (line if tile.source.is_k_major else k) + share * tile.share_rows
            for row in range(tile.share_rows):
                for column in range(tile.inner):
                    address = start + row * tile.width + column * tile.element_bytes
                    y, x = y0 + row, x0 + column
                    value = int(matrix[y, x]) if y < outer and x < inner else 0
                    result[tma.swizzled(address, tile.width)] = value
    return result


@pytest.mark.parametrize(
    ("lines", "step", "sharers", "k_major", "dtype"),
    [
        (64, 64, 1, True, "bfloat16"),
        (24, 128, 1, True, "bfloat16"),
        (128, 64, 2, True, "bfloat16"),
        (64, 64, 2, False, "bfloat16"),
        (128, 64, 1, False, "bfloat16"),
        (96, 64, 1, False, "float16"),
        (16, 128, 2, False, "float16"),
        (64, 128, 1, True, "int8"),
        (32, 32, 2, True, "float32"),
    ],
)
def test_tensor_cores_find_what_tma_wrote(
    lines: int, step: int, sharers: int, k_major: bool, dtype: str
) -> None:
    n_lines, n_k, line0, k0 = lines + 40, step + 20, 32, step // 2
    strides = (0, n_k, 1) if k_major else (0, 1, n_lines)
    source = layout.matrix(Operand(0, dtype, strides), 1, n_lines, n_k)
    tile = layout.Tile(source, lines, step, sharers)
    values = np.arange(1, n_lines * n_k + 1).reshape(n_lines, n_k)
    written = _written(tile, values if k_major else values.T, line0, k0)
    assert max(written) < tile.total_bytes
    per_instruction = 32 // tile.element_bytes
    for k in range(0, step, per_instruction):
        start = hopper_stage.k_offset(tile, k)
        for line in range(lines):
            for inside in range(per_instruction):
                y, x = line0 + line, k0 + k + inside
                expected = int(values[y, x]) if y < n_lines and x < n_k else 0
                address = hopper_stage.address(tile, tile.descriptor, start, line, inside)
                assert written[address] == expected


def test_subtiles_begin_where_their_lines_do() -> None:
    """An instruction on lines 64 and up starts at their offset and sees the same addresses."""
    for k_major in (True, False):
        strides = (0, 256, 1) if k_major else (0, 1, 256)
        source = layout.matrix(Operand(0, "bfloat16", strides), 1, 256, 256)
        tile = layout.Tile(source, 256, 128, 1)
        for line in range(64, 256, 64):
            start = hopper_stage.line_offset(tile, line) + hopper_stage.k_offset(tile, 16)
            whole = hopper_stage.k_offset(tile, 16)
            for inside in (0, 1, 9, 63):
                moved = hopper_stage.address(tile, tile.descriptor, start, inside, 3)
                at_once = hopper_stage.address(tile, tile.descriptor, whole, line + inside, 3)
                assert moved == at_once


def test_copies_have_rows_of_16_bytes() -> None:
    source = layout.matrix(Operand(0, "bfloat16", (197 * 509, 509, 1)), 3, 197, 509)
    assert source.is_k_major and not source.is_aligned
    copy = layout.packed(source, 7)
    assert (copy.tensor, copy.outer_stride, copy.batch_stride) == (7, 512, 197 * 512)
    assert copy.is_aligned and layout.packed_bytes(copy) == 3 * 197 * 512 * 2
    shared = layout.packed(dataclasses.replace(source, batch_stride=0), 7)
    assert shared.batch_stride == 0 and layout.packed_bytes(shared) == 197 * 512 * 2


def test_single_rows_need_no_strides() -> None:
    row = layout.matrix(Operand(0, "bfloat16", (0, 3, 1)), 1, 1, 509)
    assert row.is_aligned
    tensor_map = layout.Tile(row, 64, 64, 1).tensor_map()
    assert tensor_map.extents == (509, 1, 1)
    assert tensor_map.strides_bytes[0] == 1024  # 509 elements, rounded up to 16 bytes
