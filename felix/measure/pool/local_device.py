"""The devices of this machine that candidates of a target run on."""

from __future__ import annotations

import dataclasses
from typing import Literal

import tvm

from felix import errors, target
from felix.measure.cuda import devices
from felix.measure.cuda.building import nvrtc
from felix.measure.pool import candidates
from felix.target import cpu


def of(built_for: tvm.target.Target) -> candidates.Device:
    """The device a target runs on.

    Raises:
        MeasureError: this machine does not have it, or cannot build for it.
        TargetError: the target's code uses instructions that this machine's CPU does not have.
    """
    kind = built_for.kind.name
    if kind not in ("llvm", "cuda"):
        raise errors.MeasureError(f"cannot measure target kind {kind!r} on this machine")
    target.refuse_foreign(built_for)
    hardware = target.hardware(built_for)
    if kind == "cuda":
        if not tvm.runtime.device("cuda", 0).exist:
            raise errors.MeasureError(
                "no CUDA device here: tune for 'llvm' or on a machine with a GPU"
            )
        nvrtc.check(str(built_for.attrs["arch"]), devices.version())
        hardware = _gpu_here(built_for, hardware)
    cache_bytes = hardware.l3_bytes or hardware.l2_bytes
    return candidates.Device("cpu" if kind == "llvm" else kind, hardware.name, cache_bytes)


def chosen(
    built_for: tvm.target.Target, indices: tuple[int, ...] | Literal["all"]
) -> tuple[candidates.Device, ...]:
    """The devices that a pool measures on: one, or several GPUs of the model of the first.

    Args:
        built_for: the target.
        indices: of GPUs as this process counts them, or "all" of them; a CPU is one device.

    Raises:
        MeasureError: see `of`; or there is no such GPU, or the GPUs differ.
        TargetError: see `of`.
    """
    first = of(built_for)
    if first.kind != "cuda" or indices == (0,):
        return (first,)
    count = devices.count()
    numbers = tuple(range(count)) if indices == "all" else indices
    if not numbers or len(set(numbers)) < len(numbers):
        raise errors.MeasureError(f"name one GPU or several different ones, not {numbers}")
    beyond = [number for number in numbers if not 0 <= number < count]
    if beyond:
        raise errors.MeasureError(f"there is no GPU {beyond[0]} here: they are 0 to {count - 1}")
    models = {number: devices.name(number) for number in (0, *numbers)}
    other = next((number for number in numbers if models[number] != models[0]), None)
    if other is not None:
        raise errors.MeasureError(
            f"GPU {other} is a {models[other]} and GPU 0 a {models[0]}: latencies of two models "
            "do not compare; hide one by CUDA_VISIBLE_DEVICES"
        )
    return tuple(
        dataclasses.replace(first, index=number, visible=devices.visible_name(number))
        for number in numbers
    )


def _gpu_here(built_for: tvm.target.Target, required: target.Hardware) -> target.Hardware:
    """This machine's GPU, under whose name latencies are recorded.

    Raises:
        MeasureError: the target names another model.
    """
    here = target.hardware("cuda")
    names_model = "model" in built_for.attrs or "feature.name" in built_for.attrs
    if names_model and required.name != here.name:
        raise errors.MeasureError(
            f"the target is for {required.name}, the GPU here is {here.name}: "
            "tune for 'cuda', which is the GPU that is here, or where the target's is"
        )
    return here


def num_cores(built_for: tvm.target.Target) -> int:
    """How many cores a program for a CPU uses."""
    return int(built_for.attrs.get("num-cores", 0)) or cpu.available_cores()
