"""The GPUs of this machine and its driver, asked without a context.

A process that only needs to know what is there uses nothing of a GPU.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable

from felix import errors
from felix.measure.cuda import driver


def bus_id(index: int) -> str:
    """PCI address of a device, the same in every process.

    Raises:
        MeasureError: there is no driver here, or no such device.
    """
    text = ctypes.create_string_buffer(64)
    cuda = _library()
    _of_device(cuda, index, lambda device: cuda.cuDeviceGetPCIBusId(text, 64, device))
    return text.value.decode().lower()


def uuid(index: int) -> str:
    """UUID of a device, 32 hexadecimal digits, the same wherever it is; raises as `bus_id`."""
    digits = ctypes.create_string_buffer(16)
    cuda = _library()
    _of_device(cuda, index, lambda device: cuda.cuDeviceGetUuid(digits, device))
    return digits.raw.hex()


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


def _of_device(cuda: ctypes.CDLL, index: int, call: Callable[[ctypes.c_int], int]) -> None:
    """Call with a device's handle."""
    device = ctypes.c_int()
    for code in (
        cuda.cuInit(0), cuda.cuDeviceGet(ctypes.byref(device), index), call(device)
    ):  # fmt: skip
        if code:
            raise errors.MeasureError(f"the CUDA driver finds no device {index} (error {code})")
