"""A CUDA driver whose device is this process: its memory is the host's, its kernels are functions.

`Driver` stands for the library that `felix.measure.cuda.driver` loads. It keeps a clock of its
own, which kernels move, and writes down which calls were made. A kernel is a function of the
addresses of its arguments; it returns an error code that shows at the next call, as that of a
crash on a device does.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from felix.measure import reference

Kernel = Callable[[Sequence[int]], int | None]

NAMES = {
    1: b"CUDA_ERROR_INVALID_VALUE",
    2: b"CUDA_ERROR_OUT_OF_MEMORY",
    500: b"CUDA_ERROR_NOT_FOUND",
    700: b"CUDA_ERROR_ILLEGAL_ADDRESS",
    701: b"CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES",
}
_ATTRIBUTES = {16: 4, 38: 4096, 75: 9, 76: 0}  # multiprocessors, bytes of L2, sm_90
_DTYPES: dict[int, Any] = {
    0: np.uint8, 1: np.float32, 2: np.float64, 3: np.float16, 4: ml_dtypes.bfloat16,
}  # fmt: skip


def word(address: int) -> int:
    """The 64-bit value of a kernel's argument."""
    return ctypes.c_uint64.from_address(address).value


def array(address: int, count: int, dtype: Any = np.float32) -> np.ndarray[Any, Any]:
    """The device's memory at an address."""
    dtype = np.dtype(dtype)
    raw = (ctypes.c_ubyte * (count * dtype.itemsize)).from_address(address)
    return np.frombuffer(raw, dtype=dtype)


class Driver:
    """See the module docstring; `capacity` is in bytes, `durations_us` are by kernel."""

    def __init__(self, kernels: dict[str, Kernel], capacity: int = 1 << 20) -> None:
        self.kernels: dict[str, Kernel] = {
            "felix_sweep": lambda args: None,
            "felix_probe": lambda args: None,
            "felix_compare": _compare,
            **kernels,
        }
        self.durations_us = {"felix_probe": 40.0}
        self.refused: set[str] = set()
        self.capacity = capacity
        self.slowdown = 1.0
        self.log: list[str] = []
        self.launched: list[str] = []
        self.memory: dict[int, ctypes.Array[Any]] = {}
        self._names = list(self.kernels)
        self._now_us = 0.0
        self._events: list[float] = []
        self._crashed = 0

    def __getattr__(self, name: str) -> Callable[..., int]:
        """Calls that only have to succeed."""
        if not name.startswith("cu"):
            raise AttributeError(name)
        return lambda *args: self._noted(name)

    def _noted(self, name: str) -> int:
        self.log.append(name)
        return self._crashed

    def cuDeviceGetAttribute(self, value: Any, number: int, device: Any) -> int:
        value._obj.value = _ATTRIBUTES[number]
        return self._noted("cuDeviceGetAttribute")

    def cuGetErrorName(self, code: int, text: Any) -> int:
        text._obj.value = NAMES[code]
        return 0

    def cuMemAlloc_v2(self, pointer: Any, size: Any) -> int:
        if sum(map(len, self.memory.values())) + size.value > self.capacity:
            self.log.append("cuMemAlloc_v2")
            return 2
        block = ctypes.create_string_buffer(size.value)
        pointer._obj.value = ctypes.addressof(block)
        self.memory[pointer._obj.value] = block
        return self._noted("cuMemAlloc_v2")

    def cuMemFree_v2(self, pointer: Any) -> int:
        if self.memory.pop(pointer.value, None) is None:
            return 1
        return self._noted("cuMemFree_v2")

    def _move(self, name: str, target: Any, source: Any, size: Any) -> int:
        ctypes.memmove(target.value, source.value, size.value)
        return self._noted(name)

    def cuMemcpyHtoDAsync_v2(self, target: Any, source: Any, size: Any, stream: Any) -> int:
        return self._move("cuMemcpyHtoDAsync_v2", target, source, size)

    def cuMemcpyDtoH_v2(self, target: Any, source: Any, size: Any) -> int:
        return self._move("cuMemcpyDtoH_v2", target, source, size)

    def cuMemcpyDtoDAsync_v2(self, target: Any, source: Any, size: Any, stream: Any) -> int:
        return self._move("cuMemcpyDtoDAsync_v2", target, source, size)

    def cuMemsetD8Async(self, pointer: Any, byte: Any, size: Any, stream: Any) -> int:
        assert size.value <= len(self.memory[pointer.value])
        ctypes.memset(pointer.value, byte.value, size.value)
        return self._noted("cuMemsetD8Async")

    def cuModuleGetFunction(self, function: Any, module: Any, name: bytes) -> int:
        if name.decode() not in self._names:
            return 500
        function._obj.value = 1 + self._names.index(name.decode())
        return self._noted("cuModuleGetFunction")

    def cuLaunchKernel(self, function: Any, *rest: Any) -> int:
        name = self._names[function.value - 1]
        self.log.append("cuLaunchKernel")
        if name in self.refused:
            return 701
        if self._crashed:
            return self._crashed
        self.launched.append(name)
        pointers = rest[-2]
        self._crashed = self.kernels[name](list(pointers)) or 0
        self._now_us += self.durations_us.get(name, 1.0) * self.slowdown
        return 0

    def cuEventCreate(self, event: Any, flags: int) -> int:
        self._events.append(0.0)
        event._obj.value = len(self._events)
        return self._noted("cuEventCreate")

    def cuEventRecord(self, event: Any, stream: Any) -> int:
        self._events[event.value - 1] = self._now_us
        return self._noted("cuEventRecord")

    def cuEventElapsedTime(self, milliseconds: Any, start: Any, end: Any) -> int:
        elapsed_us = self._events[end.value - 1] - self._events[start.value - 1]
        milliseconds._obj.value = elapsed_us / 1e3
        return self._noted("cuEventElapsedTime")


def _compare(args: Sequence[int]) -> None:
    got, want, count = (word(address) for address in args[:3])
    relative = ctypes.c_double.from_address(args[3]).value
    kind = ctypes.c_int.from_address(args[5]).value
    dtype = _DTYPES[kind]
    differs = reference.mismatch(array(got, count, dtype), array(want, count, dtype), relative)
    array(word(args[6]), 1, np.uint64)[0] = differs is not None
