"""The kernel that packs operands, its text run on the CPU."""

from __future__ import annotations

import ctypes
import pathlib
import subprocess
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from felix.templates.gemm.hopper import design as designs
from felix.templates.gemm.hopper import helpers, layout

_CPU = """
#define __device__
#define __global__
#define __forceinline__ inline
#define __restrict__
#define __launch_bounds__(threads)
typedef unsigned char u8; typedef unsigned short u16;
struct alignas(16) ulonglong2 { unsigned long long x, y; };
struct Index { int x; };
static Index blockIdx, threadIdx;
"""
_RUN = """
extern "C" void run(const {kind}* a, {kind}* a_copy, const {kind}* b, {kind}* b_copy) {{
  for (blockIdx.x = 0; blockIdx.x < {blocks}; ++blockIdx.x)
    for (threadIdx.x = 0; threadIdx.x < {threads}; ++threadIdx.x) pack(a, a_copy, b, b_copy);
}}
"""


def run(
    packs: list[designs.Pack], sources: Sequence[NDArray[Any]], storage: type, folder: pathlib.Path
) -> list[NDArray[Any]]:
    """The copies of both operands."""
    copies = [_aligned(layout.packed_bytes(pack.copy)).view(storage) for pack in packs]
    pairs = zip(sources, copies, strict=True)
    pointers = [ctypes.c_void_p(x.ctypes.data) for pair in pairs for x in pair]
    _library(packs, storage, folder).run(*pointers)
    return copies


def _aligned(n_bytes: int) -> np.ndarray:
    buffer = np.zeros(n_bytes + 16, dtype=np.uint8)
    start = -buffer.ctypes.data % 16
    return buffer[start : start + n_bytes]


def _library(packs: list[designs.Pack], storage: type, folder: pathlib.Path) -> ctypes.CDLL:
    kind = "u16" if storage is np.uint16 else "signed char"
    blocks = helpers.pack_launch(packs).extents[0]
    run = _RUN.format(kind=kind, blocks=blocks, threads=helpers.THREADS)
    library = folder / "pack.so"
    command = ["cc", "-w", "-O1", "-shared", "-fPIC", "-x", "c++", "-", "-o", str(library)]
    text = _CPU + helpers.pack_source(packs) + run
    subprocess.run(command, input=text, text=True, check=True)
    return ctypes.CDLL(str(library))
