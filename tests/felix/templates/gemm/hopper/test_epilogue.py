"""Generated functions that finish and store sums, on the CPU; tiles in shared memory, in numpy."""

from __future__ import annotations

import ctypes
import dataclasses
import pathlib
import subprocess
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from felix.templates.gemm.hopper import epilogue, layout
from felix.templates.gemm.hopper.design import Sink
from felix.templates.gemm.hopper.layout import Batches
from felix.templates.gemm.problem import Epilogue, Operand, Output, Read, Strides
from tests.support.cuda import tma
from tests.support.templates import hopper_stage

#: CUDA's words, and the conversion that a GPU has an instruction for (to nearest even).
_CPU = """
#include <math.h>
#include <string.h>
#define __device__
#define __forceinline__ inline
#define __restrict__
typedef unsigned char u8; typedef unsigned short u16; typedef unsigned int u32;
typedef unsigned long long u64;
static inline int min(int a, int b) { return a < b ? a : b; }
static inline float __uint_as_float(u32 bits) { float f; memcpy(&f, &bits, 4); return f; }
static inline u16 float_to_bfloat(float f) {
  u32 bits; memcpy(&bits, &f, 4);
  return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}
"""
_RUN = """
extern "C" void {name}(Out* output, const u16* read0, const float* read1, const float* sums) {{
  const Reads reads = {{read0, read1}};
  for (int batch = 0; batch < {batch}; ++batch)
    for (int row = 0; row < {rows}; ++row)
      for (int column = 0; column < {columns}; column += {step}) {{
        const float* x = sums + (batch * {rows} + row) * {columns} + column;
        {store};
      }}
}}
"""
_STORES = {
    "one": (1, "store_one(output, reads, batch, row, column, x[0])"),
    "pair": (2, "store_pair(output, reads, batch, row, column, x[0], x[1])"),
}
_BATCH, _BEYOND = 2, 4


@dataclasses.dataclass(frozen=True)
class _Case:
    m: int
    n: int
    output: Strides
    read0: Strides
    read1: Strides
    dtype: str = "bfloat16"


_CASES = {
    "vectors": _Case(6, 10, (60, 10, 1), (0, 0, 1), (60, 10, 1)),
    "odd rows": _Case(5, 7, (35, 7, 1), (0, 0, 1), (35, 7, 1)),
    "even columns, odd stride": _Case(5, 8, (45, 9, 1), (0, 1, 0), (45, 9, 1)),
    "columns contiguous": _Case(6, 8, (48, 1, 6), (0, 1, 0), (48, 1, 6), "float32"),
    "one row": _Case(1, 12, (12, 3, 1), (0, 0, 0), (12, 5, 1), "float32"),
}


def _bfloat(values: NDArray[Any]) -> NDArray[np.uint16]:
    bits = values.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def _float(bits: NDArray[np.uint16]) -> NDArray[np.float32]:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def _view(array: NDArray[Any], strides: Strides, case: _Case) -> NDArray[Any]:
    size = array.itemsize
    shape = (_BATCH, case.m, case.n)
    return np.lib.stride_tricks.as_strided(array, shape, tuple(s * size for s in strides))


@pytest.mark.parametrize("name", _CASES)
def test_sums_are_finished_and_stored(name: str, tmp_path: pathlib.Path) -> None:
    case = _CASES[name]
    rng = np.random.default_rng(0)
    rows, columns = case.m + _BEYOND, case.n + _BEYOND + case.n % 2
    sums = rng.standard_normal((_BATCH, rows, columns), dtype=np.float32)
    read0 = _bfloat(rng.standard_normal(200))
    read1 = rng.standard_normal(200, dtype=np.float32)
    x = sums[:, : case.m, : case.n]
    values = x * _float(_view(read0, case.read0, case)) + _view(read1, case.read1, case)
    expected = np.zeros(200, dtype=np.uint16 if case.dtype == "bfloat16" else np.float32)
    _view(expected, case.output, case)[...] = (
        _bfloat(values) if case.dtype == "bfloat16" else values
    )
    library = ctypes.CDLL(str(_compile(case, rows, columns, tmp_path)))
    for store in _STORES:
        output = np.zeros_like(expected)
        library[store](*(ctypes.c_void_p(a.ctypes.data) for a in (output, read0, read1, sums)))
        np.testing.assert_allclose(output.astype(float), expected.astype(float), rtol=1e-6)
        assert np.count_nonzero(output) == _BATCH * case.m * case.n


def _compile(case: _Case, rows: int, columns: int, folder: pathlib.Path) -> pathlib.Path:
    reads = (Read("read0", 2, "bfloat16", case.read0), Read("read1", 3, "float32", case.read1))
    sink = Sink(Output(4, case.dtype, case.output), _BATCH, Epilogue("x * read0 + read1", reads))
    functions = epilogue.functions(sink, "float32", case.m, case.n)
    runs = [
        _RUN.format(name=name, batch=_BATCH, rows=rows, columns=columns, step=step, store=store)
        for name, (step, store) in _STORES.items()
    ]
    library = folder / "epilogue.so"
    flags = [
        "-w",
        "-O1",
        "-ffp-contract=off",
        "-fsanitize=alignment",
        "-fsanitize-undefined-trap-on-error",
    ]
    command = ["cc", *flags, "-shared", "-fPIC", "-x", "c++", "-", "-o", str(library)]
    subprocess.run(command, input=_CPU + functions + "".join(runs), text=True, check=True)
    return library


# ---------------------------------------------------------------- tiles in shared memory


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
    source = layout.matrix(Operand(0, dtype, strides), n_lines, n_k, Batches(1))
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
        source = layout.matrix(Operand(0, "bfloat16", strides), 256, 256, Batches(1))
        tile = layout.Tile(source, 256, 128, 1)
        for line in range(64, 256, 64):
            start = hopper_stage.line_offset(tile, line) + hopper_stage.k_offset(tile, 16)
            whole = hopper_stage.k_offset(tile, 16)
            for inside in (0, 1, 9, 63):
                moved = hopper_stage.address(tile, tile.descriptor, start, inside, 3)
                at_once = hopper_stage.address(tile, tile.descriptor, whole, line + inside, 3)
                assert moved == at_once


def test_copies_have_rows_of_16_bytes() -> None:
    batches = Batches(3, stride=197 * 509)
    source = layout.matrix(Operand(0, "bfloat16", (0, 509, 1)), 197, 509, batches)
    assert source.is_k_major and not source.is_aligned
    copy = layout.packed(source, 7)
    assert (copy.tensor, copy.outer_stride, copy.batches.stride) == (7, 512, 197 * 512)
    assert copy.is_aligned and layout.packed_bytes(copy) == 3 * 197 * 512 * 2
    shared = layout.packed(dataclasses.replace(source, batches=Batches(3)), 7)
    assert shared.batches.stride == 0 and layout.packed_bytes(shared) == 197 * 512 * 2


def test_single_rows_need_no_strides() -> None:
    row = layout.matrix(Operand(0, "bfloat16", (0, 3, 1)), 1, 509, Batches(1))
    assert row.is_aligned
    tensor_map = layout.Tile(row, 64, 64, 1).tensor_map()
    assert tensor_map.extents == (509, 1, 1)
    assert tensor_map.strides_bytes[0] == 1024  # 509 elements, rounded up to 16 bytes
