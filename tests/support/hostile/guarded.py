"""Memory whose neighbour may not be touched: an overrun of one element is a SIGSEGV.

A guarded array ends where a page begins that may neither be read nor written, or begins where such
a page ends.
"""

from __future__ import annotations

import ctypes
import math
import mmap
from typing import Any

import numpy as np
import tvm

_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_LIBC.memset.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t)
_NO_ACCESS = 0
_PAGE = mmap.PAGESIZE
#: Where the data of a tensor starts, for compiled functions.
_ALIGNMENT = 64


class GuardedArray:
    """An array between two pages without access; it touches the one behind it, or before it."""

    def __init__(self, shape: tuple[int, ...], dtype: str, *, at_end: bool) -> None:
        """
        Args:
            shape: extents.
            dtype: TVM's name of the type; the array of a bfloat16 is of its bits.
            at_end: whether the last element touches the page behind, rounded to `_ALIGNMENT`
                bytes; else the first element touches the page before.
        """
        self._dtype, held = dtype, "uint16" if dtype == "bfloat16" else dtype
        size = max(1, math.prod(shape)) * np.dtype(held).itemsize
        pages = -(-size // _PAGE)
        self._memory = mmap.mmap(-1, (pages + 2) * _PAGE)
        view = (ctypes.c_char * len(self._memory)).from_buffer(self._memory)
        start = ctypes.addressof(view)
        self._guards = (start, start + (pages + 1) * _PAGE)
        slack = pages * _PAGE - size
        offset = _PAGE + (slack // _ALIGNMENT * _ALIGNMENT if at_end else 0)
        self.array: Any = np.frombuffer(
            self._memory, dtype=held, count=math.prod(shape), offset=offset
        ).reshape(shape)
        for guard in self._guards:
            if _LIBC.mprotect(guard, _PAGE, _NO_ACCESS):
                raise OSError(ctypes.get_errno(), "mprotect")
        self._view = view

    def tensor(self) -> Any:
        """The array as TVM takes it, without a copy."""
        tensor = tvm.runtime.from_dlpack(self.array)
        if self._dtype != "bfloat16":
            return tensor
        return tensor._create_view(self.array.shape, self._dtype)


def _values(dtype: np.dtype[Any]) -> Any:
    """Values of a type that an index should not have; the least is left out, for -1 divides it."""
    if dtype.kind not in "iu" or dtype.itemsize == 2:  # bfloat16 is held as its bits
        return np.array([0, 1]).astype(dtype)
    limits = np.iinfo(dtype)
    return np.array([0, 1, 7, 15, 16, 100, limits.max, limits.min + 1]).astype(dtype)


def run(function: Any, parameters: Any, seed: int = 0) -> None:
    """Call a compiled function twice, its tensors before a forbidden page and behind one.

    Args:
        function: a compiled CPU function of tensors.
        parameters: the buffers of the program it was compiled from.
        seed: of the values of the tensors.
    """
    rng = np.random.default_rng(seed)
    for at_end in (True, False):
        guarded = []
        for parameter in parameters:
            shape = tuple(int(extent) for extent in parameter.ty.shape)
            memory = GuardedArray(shape, str(parameter.ty.dtype), at_end=at_end)
            memory.array[...] = rng.choice(_values(memory.array.dtype), shape)
            guarded.append(memory)
        function(*[memory.tensor() for memory in guarded])
