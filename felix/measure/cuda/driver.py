"""The CUDA driver through ctypes: one context, memory, modules, launches, events.

Only what measuring needs. Loading a cubin and launching it this way takes microseconds and no
host code; a call that fails raises `DriverError` with the driver's name for it. Sizes are bytes,
device addresses plain ints.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from felix import errors

#: Errors after which the context still works: the launch was refused, nothing ran.
_HARMLESS = {
    1: "CUDA_ERROR_INVALID_VALUE",
    2: "CUDA_ERROR_OUT_OF_MEMORY",
    200: "CUDA_ERROR_INVALID_IMAGE",
    209: "CUDA_ERROR_NO_BINARY_FOR_GPU",
    218: "CUDA_ERROR_INVALID_PTX",
    500: "CUDA_ERROR_NOT_FOUND",
    701: "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES",
}
_MAX_DYNAMIC_SHARED = 8
_ATTRIBUTE_MULTIPROCESSORS = 16
_ATTRIBUTE_L2_BYTES = 38
_STATIC_SHARED_BYTES = 48 * 1024


class DriverError(Exception):
    """A driver call failed; `poisoned` says that the context cannot be used any more."""

    def __init__(self, code: int, call: str, name: str) -> None:
        super().__init__(f"{name} in {call}")
        self.code = code
        self.poisoned = code not in _HARMLESS


class Kernel:
    """A function of a loaded module with fixed launch extents and arguments."""

    def __init__(
        self,
        function: ctypes.c_void_p,
        extents: Sequence[int],
        shared_bytes: int,
        args: Sequence[Any],
    ) -> None:
        self.function = function
        self.extents = tuple(extents)
        self.shared_bytes = shared_bytes
        self._args = tuple(args)  # kept alive: `pointers` points to them
        self.pointers = (ctypes.c_void_p * len(args))(*[ctypes.addressof(arg) for arg in args])


class Context:
    """The primary context of a device, current in the calling thread, and one stream."""

    def __init__(self, index: int = 0) -> None:
        self._cuda = _library()
        self._call("cuInit", 0)
        device = ctypes.c_int()
        self._call("cuDeviceGet", ctypes.byref(device), index)
        self._device = device
        context = ctypes.c_void_p()
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self._call("cuCtxSetCurrent", context)
        self._stream = ctypes.c_void_p()
        self._call("cuStreamCreate", ctypes.byref(self._stream), 1)

    @property
    def l2_bytes(self) -> int:
        """Size of the last-level cache."""
        return self._attribute(_ATTRIBUTE_L2_BYTES)

    @property
    def multiprocessors(self) -> int:
        """How many the device has."""
        return self._attribute(_ATTRIBUTE_MULTIPROCESSORS)

    @property
    def arch(self) -> str:
        """Like "sm_90"."""
        return f"sm_{self._attribute(75)}{self._attribute(76)}"

    def _attribute(self, number: int) -> int:
        value = ctypes.c_int()
        self._call("cuDeviceGetAttribute", ctypes.byref(value), number, self._device)
        return value.value

    # ------------------------------------------------------------ memory

    def allocate(self, n_bytes: int) -> int:
        """Device memory."""
        pointer = ctypes.c_uint64()
        self._call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(max(n_bytes, 16)))
        return pointer.value

    def free(self, pointer: int) -> None:
        """Give device memory back."""
        self._call("cuMemFree_v2", ctypes.c_uint64(pointer))

    def upload(self, pointer: int, array: NDArray[Any]) -> None:
        """Copy a host array to the device, in stream order.

        The array may change afterwards: it is not page-locked, so the driver has copied it when it
        returns. The blocking call would not do: it may return before the device has the data, and
        our stream does not wait for the default one.
        """
        array = np.ascontiguousarray(array)
        self._call(
            "cuMemcpyHtoDAsync_v2", ctypes.c_uint64(pointer), ctypes.c_void_p(array.ctypes.data),
            ctypes.c_size_t(array.nbytes), self._stream,
        )  # fmt: skip

    def download(self, pointer: int, array: NDArray[Any]) -> NDArray[Any]:
        """Fill a contiguous host array from the device."""
        self._call(
            "cuMemcpyDtoH_v2", ctypes.c_void_p(array.ctypes.data), ctypes.c_uint64(pointer),
            ctypes.c_size_t(array.nbytes),
        )  # fmt: skip
        return array

    def copy(self, target: int, source: int, n_bytes: int) -> None:
        """Copy on the device, in stream order."""
        self._call(
            "cuMemcpyDtoDAsync_v2", ctypes.c_uint64(target), ctypes.c_uint64(source),
            ctypes.c_size_t(n_bytes), self._stream,
        )  # fmt: skip

    def fill(self, pointer: int, byte: int, n_bytes: int) -> None:
        """Set bytes, in stream order."""
        self._call(
            "cuMemsetD8Async", ctypes.c_uint64(pointer), ctypes.c_ubyte(byte),
            ctypes.c_size_t(n_bytes), self._stream,
        )  # fmt: skip

    # ------------------------------------------------------------ code

    def load(self, cubin: bytes) -> ctypes.c_void_p:
        """Load a cubin."""
        module = ctypes.c_void_p()
        self._call("cuModuleLoadData", ctypes.byref(module), cubin)
        return module

    @contextlib.contextmanager
    def loaded(self, cubin: bytes) -> Iterator[ctypes.c_void_p]:
        """A cubin loaded for the block. A poisoned context unloads nothing: all that could give
        is a second error in front of the one that tells what happened."""
        module = self.load(cubin)
        poisoned = False
        try:
            yield module
        except DriverError as error:
            poisoned = error.poisoned
            raise
        finally:
            if not poisoned:
                self._call("cuModuleUnload", module)

    def kernel(
        self,
        module: ctypes.c_void_p,
        name: str,
        extents: Sequence[int],
        args: Sequence[Any],
        shared_bytes: int = 0,
    ) -> Kernel:
        """A kernel of a module, ready to launch; `args` are ctypes values."""
        function = ctypes.c_void_p()
        self._call("cuModuleGetFunction", ctypes.byref(function), module, name.encode())
        if shared_bytes > _STATIC_SHARED_BYTES:
            self._call("cuFuncSetAttribute", function, _MAX_DYNAMIC_SHARED, shared_bytes)
        return Kernel(function, extents, shared_bytes, args)

    def launch(self, kernel: Kernel) -> None:
        """Put a launch on the stream."""
        code = self._cuda.cuLaunchKernel(
            kernel.function, *kernel.extents, kernel.shared_bytes, self._stream,
            kernel.pointers, None,
        )  # fmt: skip
        if code:
            raise self._error(code, "cuLaunchKernel")

    # ------------------------------------------------------------ time

    def event(self) -> ctypes.c_void_p:
        """An event that keeps time."""
        event = ctypes.c_void_p()
        self._call("cuEventCreate", ctypes.byref(event), 0)
        return event

    def record(self, event: ctypes.c_void_p) -> None:
        """Record an event on the stream."""
        self._call("cuEventRecord", event, self._stream)

    def elapsed_us(self, start: ctypes.c_void_p, end: ctypes.c_void_p) -> float:
        """Time between two recorded events that have happened."""
        milliseconds = ctypes.c_float()
        # CUDA 13 has the plain name only with its second version's meaning, which is the same.
        self._call("cuEventElapsedTime", ctypes.byref(milliseconds), start, end)
        return milliseconds.value * 1e3

    def synchronize(self) -> None:
        """Wait for everything on the stream; errors of kernels show here."""
        self._call("cuStreamSynchronize", self._stream)

    def _call(self, name: str, *args: Any) -> None:
        code = getattr(self._cuda, name)(*args)
        if code:
            raise self._error(code, name)

    def _error(self, code: int, call: str) -> DriverError:
        text = ctypes.c_char_p()
        known = self._cuda.cuGetErrorName(code, ctypes.byref(text)) == 0 and text.value
        return DriverError(code, call, known.decode() if known else f"CUDA error {code}")


def bus_id(index: int) -> str:
    """PCI address of a device, the same in every process; makes no context."""
    text = ctypes.create_string_buffer(64)
    cuda = _library()
    _of_device(cuda, index, lambda device: cuda.cuDeviceGetPCIBusId(text, 64, device))
    return text.value.decode().lower()


def uuid(index: int) -> str:
    """UUID of a device, 32 hexadecimal digits, the same wherever it is; makes no context."""
    digits = ctypes.create_string_buffer(16)
    cuda = _library()
    _of_device(cuda, index, lambda device: cuda.cuDeviceGetUuid(digits, device))
    return digits.raw.hex()


def version() -> tuple[int, int]:
    """The newest CUDA that the driver runs, like (13, 0)."""
    number = ctypes.c_int()
    if code := _library().cuDriverGetVersion(ctypes.byref(number)):
        raise errors.MeasureError(f"the CUDA driver does not tell its version (error {code})")
    return number.value // 1000, number.value % 1000 // 10


def _library() -> ctypes.CDLL:
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise errors.MeasureError(f"no CUDA driver here: {error}") from error


def _of_device(cuda: ctypes.CDLL, index: int, call: Callable[[ctypes.c_int], int]) -> None:
    """Call with a device's handle."""
    device = ctypes.c_int()
    for code in (
        cuda.cuInit(0), cuda.cuDeviceGet(ctypes.byref(device), index), call(device)
    ):  # fmt: skip
        if code:
            raise errors.MeasureError(f"the CUDA driver finds no device {index} (error {code})")
