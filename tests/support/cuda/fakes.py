"""A CUDA driver whose device is this process: its memory is the host's, its kernels are functions.

`Driver` stands for the library that `felix.runner.cuda.driver` loads. It keeps a clock of its
own, which kernels move, and writes down which calls were made. A kernel is a function of the
addresses of its arguments; it returns an error code that shows at the next call, as that of a
crash on a device does. Tensor maps and launches in clusters are refused where CUDA's documentation
says that a driver refuses them; `map_of` has what was encoded.
"""

from __future__ import annotations

import ctypes
import dataclasses
import math
import struct
from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np

Kernel = Callable[[Sequence[int]], int | None]

NAMES = {
    1: b"CUDA_ERROR_INVALID_VALUE",
    2: b"CUDA_ERROR_OUT_OF_MEMORY",
    500: b"CUDA_ERROR_NOT_FOUND",
    700: b"CUDA_ERROR_ILLEGAL_ADDRESS",
    701: b"CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES",
    912: b"CUDA_ERROR_INVALID_CLUSTER_SIZE",
}
_ATTRIBUTES = {16: 4, 38: 4096, 75: 9, 76: 0}  # multiprocessors, bytes of L2, sm_90
_DTYPES: dict[int, Any] = {
    0: np.uint8,
    1: np.float32,
    2: np.float64,
    3: np.float16,
    4: ml_dtypes.bfloat16,
    5: ml_dtypes.float8_e4m3fn,
    6: ml_dtypes.float8_e5m2,
}


#: Numbers of `CUtensorMapDataType` -> bytes of an element.
_MAP_ITEM_BYTES = {0: 1, 1: 2, 2: 4, 3: 4, 4: 8, 5: 8, 6: 2, 7: 4, 8: 8, 9: 2}
#: Numbers of `CUtensorMapSwizzle` -> most bytes of the box's first dimension.
_MAP_SPANS = {0: math.inf, 1: 32, 2: 64, 3: 128}
#: `CUlaunchConfig`: grid, block, shared bytes, stream, attributes, number of these.
_CONFIG = struct.Struct("7I4xQQI4x")
#: `CUlaunchAttribute`: its number, and a union whose first members are a cluster's extents.
_ATTRIBUTE = struct.Struct("I4x3I")
_CLUSTER_DIMENSION, _PORTABLE_CLUSTER = 4, 8


@dataclasses.dataclass(frozen=True)
class EncodedMap:
    """A tensor map; numbers as CUDA has them, `others` are those that never differ."""

    dtype: int
    address: int
    extents: tuple[int, ...]
    strides_bytes: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: int
    others: tuple[int, ...]
    corners: tuple[tuple[int, ...], tuple[int, ...]] | None = None

    @property
    def is_legal(self) -> bool:
        """Whether a driver takes it."""
        row_bytes = self.box[0] * _MAP_ITEM_BYTES[self.dtype]
        if self.corners is not None and not self._are_corners_legal(*self.corners):
            return False
        most = (256, 256) if self.corners is None else (256, 1024)
        return (
            1 <= len(self.extents) <= 5
            and self.address % 16 == 0
            and all(0 < extent <= 1 << 32 for extent in self.extents)
            and all(stride % 16 == 0 and stride < 1 << 40 for stride in self.strides_bytes)
            and all(0 < extent <= most[i > 0] for i, extent in enumerate(self.box))
            and row_bytes % 16 == 0
            and row_bytes <= _MAP_SPANS[self.swizzle]
        )

    def _are_corners_legal(self, lower: tuple[int, ...], upper: tuple[int, ...]) -> bool:
        """Limits of cuTensorMapEncodeIm2col on corners and traversal strides."""
        bits = {3: 16, 4: 8, 5: 5}.get(len(self.extents))
        if bits is None:
            return False
        limit = 1 << bits - 1
        sizes = zip(self.extents[1:-1], lower, upper, strict=True)
        return (
            all(-limit <= corner < limit for corner in (*lower, *upper))
            and all(extent + after > before for extent, before, after in sizes)
            and all(1 <= stride <= 8 for stride in self.others[: len(self.extents)])
        )


def word(address: int) -> int:
    """The 64-bit value of a kernel's argument."""
    return ctypes.c_uint64.from_address(address).value


def array(address: int, count: int, dtype: Any = np.float32) -> np.ndarray[Any, Any]:
    """The device's memory at an address."""
    dtype = np.dtype(dtype)
    raw = (ctypes.c_ubyte * (count * dtype.itemsize)).from_address(address)
    return np.frombuffer(raw, dtype=dtype)


def computing(
    function: Callable[..., Any], shape: int | tuple[int, ...], dtype: Any = np.float32
) -> Kernel:
    """Writes to the last of its tensors, all of one shape, what a function makes of the others."""

    def kernel(args: Sequence[int]) -> None:
        flat = (array(word(at), int(np.prod(shape)), dtype) for at in args)
        *read, written = (each.reshape(shape) for each in flat)
        written[...] = function(*read)

    return kernel


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
        self.clusters: list[tuple[int, ...]] = []
        self.copied_to_host: list[int] = []
        self._maps: list[EncodedMap] = []
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
        self.copied_to_host.append(size.value)
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

    def cuTensorMapEncodeTiled(self, *args: Any) -> int:
        *tensor, box, steps, interleave, swizzle, promotion, outside = args
        count = tensor[2].value
        rest = tuple(box[:count]), swizzle, (*steps[:count], interleave, promotion, outside)
        return self._encoded("cuTensorMapEncodeTiled", *tensor, *rest)

    def cuTensorMapEncodeIm2col(self, *args: Any) -> int:
        *tensor, lower, upper, channels, pixels, steps = args[:11]
        interleave, swizzle, promotion, outside = args[11:]
        count, box = tensor[2].value, (channels.value, pixels.value)
        others = (*steps[:count], interleave, promotion, outside)
        corners = (tuple(lower[: count - 2]), tuple(upper[: count - 2]))
        return self._encoded("cuTensorMapEncodeIm2col", *tensor, box, swizzle, others, corners)

    def _encoded(
        self,
        call: str,
        descriptor: Any,
        dtype: int,
        rank: Any,
        address: Any,
        extents: Any,
        strides: Any,
        *rest: Any,
    ) -> int:
        """`rest` are the last fields of an `EncodedMap`."""
        self.log.append(call)
        extents, strides = tuple(extents[: rank.value]), tuple(strides[: rank.value - 1])
        fields = EncodedMap(dtype, address.value, extents, strides, *rest)
        room = descriptor._obj
        if ctypes.sizeof(room) != 128 or ctypes.addressof(room) % 64 or not fields.is_legal:
            return 1
        struct.pack_into("Q", room, 0, len(self._maps))
        self._maps.append(fields)
        return self._crashed

    def map_of(self, address: int) -> EncodedMap:
        """The tensor map that is an argument of a kernel."""
        assert address % 64 == 0
        return self._maps[word(address)]

    def cuLaunchKernelEx(self, config: Any, function: Any, pointers: Any, extra: Any) -> int:
        *extents, _, _, attributes, count = _CONFIG.unpack(bytes(config._obj))
        number, *cluster = _ATTRIBUTE.unpack(ctypes.string_at(attributes, _ATTRIBUTE.size))
        assert (count, number) == (1, _CLUSTER_DIMENSION) and extra is None
        divides = all(grid % size == 0 for grid, size in zip(extents[:3], cluster, strict=True))
        if not divides or math.prod(cluster) > _PORTABLE_CLUSTER:
            self.log.append("cuLaunchKernelEx")
            return 912
        self.clusters.append(tuple(cluster))
        return self._launched("cuLaunchKernelEx", function, pointers)

    def cuLaunchKernel(self, function: Any, *rest: Any) -> int:
        return self._launched("cuLaunchKernel", function, rest[-2])

    def _launched(self, call: str, function: Any, pointers: Any) -> int:
        name = self._names[function.value - 1]
        self.log.append(call)
        if name in self.refused:
            return 701
        if self._crashed:
            return self._crashed
        self.launched.append(name)
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
    relative, rms = (ctypes.c_double.from_address(address).value for address in args[3:5])
    kind = ctypes.c_int.from_address(args[5]).value
    actual, expected = array(got, count, _DTYPES[kind]), array(want, count, _DTYPES[kind])
    if kind:
        actual, expected = actual.astype(np.float64), expected.astype(np.float64)
        with np.errstate(invalid="ignore"):
            close = np.abs(actual - expected) <= relative * (np.abs(expected) + rms)
        same = (actual == expected) | (np.isnan(actual) & np.isnan(expected))
        differs = ~np.where(np.isfinite(expected), close, same)
    else:
        differs = actual != expected
    array(word(args[6]), 2, np.uint64)[:] = np.count_nonzero(differs), np.argmax(differs)
