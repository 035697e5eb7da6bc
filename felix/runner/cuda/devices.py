"""The GPUs of this machine and its driver, asked without a context.

A process that only needs to know what is there uses nothing of a GPU.
"""

from __future__ import annotations

import ctypes
import uuid
from collections.abc import Callable

from felix import errors
from felix.runner.cuda import driver


def bus_id(index: int) -> str:
    """PCI address of a device, the same in every process.

    Raises:
        MeasureError: there is no driver here, or no such device.
    """
    return _text(index, "cuDeviceGetPCIBusId").lower()


def visible_name(index: int) -> str:
    """The device as `CUDA_VISIBLE_DEVICES` names it, whatever this process sees: by its UUID.

    Raises as `bus_id`.
    """
    content = ctypes.create_string_buffer(16)
    cuda = _library()
    _of_device(cuda, index, lambda device: cuda.cuDeviceGetUuid(content, device))
    return f"GPU-{uuid.UUID(bytes=content.raw)}"


def name(index: int) -> str:
    """The model of a device, as the driver names it; raises as `bus_id`."""
    return _text(index, "cuDeviceGetName")


def count() -> int:
    """How many devices this process sees.

    Raises:
        MeasureError: there is no driver here, or it sees none.
    """
    cuda, number = _library(), ctypes.c_int()
    if code := cuda.cuInit(0) or cuda.cuDeviceGetCount(ctypes.byref(number)):
        raise errors.MeasureError(f"the CUDA driver counts no devices (error {code})")
    return number.value


def version() -> tuple[int, int]:
    """The newest CUDA that the driver runs, like (13, 0).

    Raises:
        MeasureError: there is no driver here.
    """
    number = ctypes.c_int()
    if code := _library().cuDriverGetVersion(ctypes.byref(number)):
        raise errors.MeasureError(f"the CUDA driver does not tell its version (error {code})")
    return number.value // 1000, number.value % 1000 // 10


def _library() -> ctypes.CDLL:
    try:
        return driver.libcuda()
    except driver.DriverError as error:
        raise errors.MeasureError(str(error)) from error


def _text(index: int, call: str) -> str:
    """What a call of the driver writes about a device."""
    text = ctypes.create_string_buffer(256)
    cuda = _library()
    _of_device(cuda, index, lambda device: getattr(cuda, call)(text, len(text), device))
    return text.value.decode()


def _of_device(cuda: ctypes.CDLL, index: int, call: Callable[[ctypes.c_int], int]) -> None:
    """Call with a device's handle."""
    device = ctypes.c_int()
    for code in (cuda.cuInit(0), cuda.cuDeviceGet(ctypes.byref(device), index), call(device)):
        if code:
            raise errors.MeasureError(f"the CUDA driver finds no device {index} (error {code})")
