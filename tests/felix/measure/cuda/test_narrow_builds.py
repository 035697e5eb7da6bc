"""Sampled schedules of 8-bit types build; no GPU is needed for that."""

from __future__ import annotations

import pytest

import felix
from felix.measure.cuda.building import build
from felix.task import Task


def _lowered(text: str, count: int) -> list[build.DeviceProgram]:
    """Of `count` samples of each sketch, unrolled by TVM as they are measured."""
    task: Task = felix.workloads.parse(text, target="h200")
    return [
        build.lower(sketch.schedule(row).mod, task.target)
        for sketch in felix.trace_sketches(task)
        for row in sketch.sample(count, 3)
    ]


@pytest.mark.parametrize(
    "text",
    [
        "conv2d:1,14,14,32,48,3,padding=1,dtype=float8_e4m3fn,out_dtype=float32",
        "pool2d:1,28,28,32,3,padding=1,dtype=int8",
    ],
)
def test_samples_are_lowered(text: str) -> None:
    """TVM's CUDA broadcasts no 8 lanes of float8, and reduces once into a buffer by threads."""
    assert all("__global__" in program.source.text for program in _lowered(text, 6))


def test_padding_of_int8_is_a_valid_constant() -> None:
    """TVM writes 8 lanes of a constant as `make_int2` of 8 arguments."""
    programs = _lowered("conv2d:1,14,14,32,48,3,padding=1,dtype=int8,epilogue=bias", 6)
    constant = "(signed char)0, " * 7
    assert all(constant not in program.source.text for program in programs)
