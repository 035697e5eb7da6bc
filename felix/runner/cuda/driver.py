"""The CUDA driver through ctypes: one context, memory, modules, launches, events.

Only what measuring needs. Loading a cubin and launching it this way takes microseconds and no
host code; a call that fails raises `DriverError` with the driver's name for it. Sizes are bytes,
device addresses plain ints.

This file imports nothing of Felix: an artifact has a copy of it beside its `run.py`.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from felix import launch_plan

#: Errors after which the context still works: the launch was refused, nothing ran.
_HARMLESS = {
    1: "CUDA_ERROR_INVALID_VALUE",
    2: "CUDA_ERROR_OUT_OF_MEMORY",
    200: "CUDA_ERROR_INVALID_IMAGE",
    209: "CUDA_ERROR_NO_BINARY_FOR_GPU",
    218: "CUDA_ERROR_INVALID_PTX",
    500: "CUDA_ERROR_NOT_FOUND",
    701: "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES",
    801: "CUDA_ERROR_NOT_SUPPORTED",
    912: "CUDA_ERROR_INVALID_CLUSTER_SIZE",
}
_INVALID_VALUE, _NO_DEVICE = 1, 100
_MAX_DYNAMIC_SHARED = 8
_ATTRIBUTE_MULTIPROCESSORS = 16
_ATTRIBUTE_L2_BYTES = 38
_STATIC_SHARED_BYTES = 48 * 1024
_LAUNCH_CLUSTER = 4
_TENSOR_MAP_BYTES, _TENSOR_MAP_ALIGNMENT = 128, 64
#: TVM's names of dtypes -> numbers of `CUtensorMapDataType`; what TMA only moves goes by size.
_TENSOR_MAP_DTYPES = {
    "int8": 0,
    "uint8": 0,
    "float8_e4m3fn": 0,
    "float8_e5m2": 0,
    "uint16": 1,
    "int16": 1,
    "uint32": 2,
    "int32": 3,
    "uint64": 4,
    "int64": 5,
    "float16": 6,
    "float32": 7,
    "float64": 8,
    "bfloat16": 9,
}
#: Bytes -> numbers of `CUtensorMapSwizzle`.
SWIZZLES = {0: 0, 32: 1, 64: 2, 128: 3}
#: The other choices of a tensor map, the same for all.
NO_INTERLEAVE, PROMOTE_TO_128_BYTES, ZEROS_OUTSIDE = 0, 2, 0


class DriverError(Exception):
    """A driver call failed; `poisoned` says that the context cannot be used any more."""

    def __init__(self, code: int, call: str, name: str) -> None:
        super().__init__(f"{name} in {call}")
        self.code = code
        self.poisoned = code not in _HARMLESS


class NoDriver(DriverError):
    """There is no CUDA driver on this machine."""

    def __init__(self, reason: str) -> None:
        Exception.__init__(self, f"no CUDA driver here: {reason}")
        self.code = _NO_DEVICE
        self.poisoned = True


class _Attribute(ctypes.Structure):
    """`CUlaunchAttribute` of a cluster: extents in x, y, z in a union of 64 bytes."""

    _fields_ = (("id", ctypes.c_uint), ("pad", ctypes.c_uint), ("value", ctypes.c_uint * 16))


class _Config(ctypes.Structure):
    """`CUlaunchConfig`: `extents` are grid x, y, z and block x, y, z."""

    _fields_ = (
        ("extents", ctypes.c_uint * 6),
        ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("n_attributes", ctypes.c_uint),
    )


class Kernel:
    """A function of a loaded module with fixed launch extents and arguments.

    `config` is what launches it in clusters, None where it has none.
    """

    def __init__(
        self,
        function: ctypes.c_void_p,
        extents: Sequence[int],
        shared_bytes: int,
        args: Sequence[Any],
        config: _Config | None = None,
    ) -> None:
        self.function = function
        self.extents = tuple(extents)
        self.shared_bytes = shared_bytes
        self.config = config
        self._args = tuple(args)  # kept alive: `pointers` points to them
        self.pointers = (ctypes.c_void_p * len(args))(*[ctypes.addressof(arg) for arg in args])


class Context:
    """The primary context of a device, current in the calling thread, and one stream."""

    def __init__(self) -> None:
        self._cuda = libcuda()
        self._call("cuInit", 0)
        device = ctypes.c_int()
        self._call("cuDeviceGet", ctypes.byref(device), 0)
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
            "cuMemcpyHtoDAsync_v2",
            ctypes.c_uint64(pointer),
            ctypes.c_void_p(array.ctypes.data),
            ctypes.c_size_t(array.nbytes),
            self._stream,
        )

    def download(self, pointer: int, array: NDArray[Any]) -> NDArray[Any]:
        """Fill a contiguous host array from the device."""
        self._call(
            "cuMemcpyDtoH_v2",
            ctypes.c_void_p(array.ctypes.data),
            ctypes.c_uint64(pointer),
            ctypes.c_size_t(array.nbytes),
        )
        return array

    def copy(self, target: int, source: int, n_bytes: int) -> None:
        """Copy on the device, in stream order."""
        self._call(
            "cuMemcpyDtoDAsync_v2",
            ctypes.c_uint64(target),
            ctypes.c_uint64(source),
            ctypes.c_size_t(n_bytes),
            self._stream,
        )

    def fill(self, pointer: int, byte: int, n_bytes: int) -> None:
        """Set bytes, in stream order."""
        self._call(
            "cuMemsetD8Async",
            ctypes.c_uint64(pointer),
            ctypes.c_ubyte(byte),
            ctypes.c_size_t(n_bytes),
            self._stream,
        )

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

    def kernels(
        self, module: ctypes.c_void_p, plan: launch_plan.LaunchPlan, addresses: Sequence[int]
    ) -> list[Kernel]:
        """The launches of a plan; `addresses` are of its parameters, then of its workspaces."""
        return [
            self.kernel(
                module,
                launch.kernel,
                launch.extents,
                [self._argument(arg, addresses) for arg in launch.args],
                launch.shared_bytes,
                launch.cluster,
            )
            for launch in plan.launches
        ]

    def kernel(
        self,
        module: ctypes.c_void_p,
        name: str,
        extents: Sequence[int],
        args: Sequence[Any],
        shared_bytes: int = 0,
        cluster: Sequence[int] = (1, 1, 1),
    ) -> Kernel:
        """A kernel of a module, ready to launch; `args` are ctypes values."""
        function = ctypes.c_void_p()
        self._call("cuModuleGetFunction", ctypes.byref(function), module, name.encode())
        if shared_bytes > _STATIC_SHARED_BYTES:
            self._call("cuFuncSetAttribute", function, _MAX_DYNAMIC_SHARED, shared_bytes)
        config = None
        if any(extent > 1 for extent in cluster):
            attribute = _Attribute(_LAUNCH_CLUSTER, 0, (ctypes.c_uint * 16)(*cluster))
            grid_and_block = (ctypes.c_uint * 6)(*extents)
            config = _Config(
                grid_and_block, shared_bytes, self._stream, ctypes.pointer(attribute), 1
            )
        return Kernel(function, extents, shared_bytes, args, config)

    def launch(self, kernel: Kernel) -> None:
        """Put a launch on the stream."""
        if kernel.config is not None:
            self._call(
                "cuLaunchKernelEx",
                ctypes.byref(kernel.config),
                kernel.function,
                kernel.pointers,
                None,
            )
            return
        code = self._cuda.cuLaunchKernel(
            kernel.function,
            *kernel.extents,
            kernel.shared_bytes,
            self._stream,
            kernel.pointers,
            None,
        )
        if code:
            raise self._error(code, "cuLaunchKernel")

    def _argument(self, arg: launch_plan.Argument, addresses: Sequence[int]) -> Any:
        """An argument of a launch as the driver takes it."""
        if isinstance(arg, int):
            return ctypes.c_uint64(addresses[arg])
        return encoded(self._cuda, arg, addresses[arg.tensor])

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
        return _error(self._cuda, code, call)


def _error(cuda: Any, code: int, call: str) -> DriverError:
    text = ctypes.c_char_p()
    known = cuda.cuGetErrorName(code, ctypes.byref(text)) == 0 and text.value
    return DriverError(code, call, known.decode() if known else f"CUDA error {code}")


def encoded(cuda: Any, tensor_map: launch_plan.TensorMap, address: int) -> ctypes.Array[Any]:
    """A tensor map as the driver `cuda` encodes it: 128 bytes that begin at a multiple of 64.

    Raises:
        DriverError: the driver refuses it.
    """
    rank, im2col = len(tensor_map.extents), tensor_map.im2col
    call = "cuTensorMapEncodeTiled" if im2col is None else "cuTensorMapEncodeIm2col"
    dtype = _TENSOR_MAP_DTYPES.get(tensor_map.dtype)
    swizzle = SWIZZLES.get(tensor_map.swizzle_bytes)
    if dtype is None or swizzle is None:
        what = f"no {tensor_map.dtype} with a swizzle of {tensor_map.swizzle_bytes} bytes"
        raise DriverError(_INVALID_VALUE, call, what)
    room = ctypes.create_string_buffer(_TENSOR_MAP_BYTES + _TENSOR_MAP_ALIGNMENT)
    before = -ctypes.addressof(room) % _TENSOR_MAP_ALIGNMENT
    descriptor = (ctypes.c_ubyte * _TENSOR_MAP_BYTES).from_buffer(room, before)
    code = getattr(cuda, call)(
        ctypes.byref(descriptor),
        dtype,
        ctypes.c_uint32(rank),
        ctypes.c_uint64(address + tensor_map.offset_bytes),
        (ctypes.c_uint64 * rank)(*tensor_map.extents),
        (ctypes.c_uint64 * rank)(*tensor_map.strides_bytes),
        *_walk(tensor_map),
        NO_INTERLEAVE,
        swizzle,
        PROMOTE_TO_128_BYTES,
        ZEROS_OUTSIDE,
    )
    if code:
        raise _error(cuda, code, call)
    return descriptor


def _walk(tensor_map: launch_plan.TensorMap) -> list[Any]:
    """What a copy moves, as the calls that encode maps take it between strides and swizzle.

    Corners of an im2col map are in the order of its dimensions, innermost first.
    """
    rank, im2col = len(tensor_map.extents), tensor_map.im2col
    if im2col is None:
        return [(ctypes.c_uint32 * rank)(*tensor_map.box), (ctypes.c_uint32 * rank)(*[1] * rank)]
    return [
        (ctypes.c_int * (rank - 2))(*im2col.lower),
        (ctypes.c_int * (rank - 2))(*im2col.upper),
        *map(ctypes.c_uint32, tensor_map.box),
        (ctypes.c_uint32 * rank)(1, *im2col.strides, 1),
    ]


def fill(descriptor: Any, tensor_map: launch_plan.TensorMap, pointer: Any) -> None:
    """Encode a tensor map of what begins at a pointer into the room that a host program has.

    Raises:
        NoDriver: it is not here.
        DriverError: the driver refuses it.
    """
    address = ctypes.cast(pointer, ctypes.c_void_p).value or 0
    content = encoded(libcuda(), tensor_map, address - tensor_map.offset_bytes)
    ctypes.memmove(descriptor, content, ctypes.sizeof(content))


def libcuda() -> ctypes.CDLL:
    """The driver's library.

    Raises:
        NoDriver: it is not here.
    """
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise NoDriver(str(error)) from error
