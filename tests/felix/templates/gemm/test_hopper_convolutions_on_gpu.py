"""Convolutions by wgmma and im2col copies: on a GPU, random decisions against the reference.

Problems are written by hand from the workloads' layouts, so that what fails here is the kernel and
not the recognition of programs. `tests/felix/measure/cuda/test_im2col.py` checks single copies;
where that fails, this does, too.
"""

from __future__ import annotations

import math
import random
from typing import Any

import numpy as np
import pytest

from felix import target, workloads
from felix.task import Task
from felix.templates.gemm.hopper import template
from felix.templates.gemm.problem import GemmProblem
from tests.support.templates import conv_problems, on_gpu
from tests.support.templates.conv_problems import Dimension

#: Dimensions, channels and columns of all groups, and what else a convolution has.
CASES: dict[str, tuple[list[Dimension], int, int, dict[str, Any]]] = {
    "3 x 3": ([Dimension(14, 3, 1, 1, 1)] * 2, 128, 256, dict(images=2)),
    "1 x 1 that moves by 2": ([Dimension(28, 1, 2)] * 2, 128, 64, dict(images=3)),
    "3 x 3 that moves by 2, channels with zeros": (
        [Dimension(15, 3, 2, 1, 1)] * 2,
        72,
        40,
        dict(images=2),
    ),
    "first layer": ([Dimension(64, 7, 2, 1, 3)] * 2, 3, 64, {}),
    "dilated": ([Dimension(20, 3, 1, 2, 2), Dimension(17, 3, 2, 3, 1)], 96, 64, dict(images=2)),
    "few pixels": ([Dimension(7, 3, 1, 1, 1)] * 2, 256, 512, {}),
    "groups": ([Dimension(14, 3, 1, 1, 1)] * 2, 64, 96, dict(groups=2)),
    "groups and images": ([Dimension(14, 3, 2, 1, 1)] * 2, 64, 64, dict(groups=4, images=3)),
    "channels first": (
        [Dimension(15, 3, 2, 1, 1)] * 2,
        64,
        96,
        dict(images=3, channels_first=True, weights="oihw", results_first=True),
    ),
    "first layer, channels first": (
        [Dimension(64, 7, 2, 1, 3)] * 2,
        3,
        64,
        dict(channels_first=True, weights="oihw", results_first=True),
    ),
    "one dimension": ([Dimension(333, 5, 3, 2, 4)], 80, 96, dict(images=3)),
    "three dimensions": ([Dimension(8, 3, 1, 1, 1)] * 3, 64, 64, dict(images=2)),
    "three dimensions that move by 2": (
        [Dimension(9, 3, 1, 1, 1), *[Dimension(14, 3, 2, 1, 1)] * 2],
        32,
        48,
        {},
    ),
}


def _random_case(seed: int) -> tuple[list[Dimension], int, int, dict[str, Any]]:
    """Windows, channels and groups as they come; at most some thousand pixels."""
    rng = random.Random(seed)
    count = rng.randint(1, 3)
    dimensions = [
        conv_problems.random_dimension(rng, (400, 30, 9)[count - 1]) for _ in range(count)
    ]
    groups = rng.choice((1, 1, 2, 4)) if count < 3 else 1
    rest: dict[str, Any] = dict(images=rng.choice((1, 2, 3)))
    if groups > 1:
        rest["groups"] = groups
    elif rng.random() < 0.3:
        rest |= dict(channels_first=True, weights="oihw", results_first=True)
    channels, columns = rng.choice((3, 8, 20, 32, 64, 80)), rng.choice((8, 16, 24, 33, 64, 100))
    return dimensions, groups * channels, groups * columns, rest


CASES |= {f"random {seed}": _random_case(seed) for seed in range(12)}


def _task(name: str, chip: str) -> Task:
    """The workload of a case."""
    dimensions, channels, columns, rest = CASES[name]
    make = getattr(workloads, f"conv{len(dimensions)}d")
    windows = {
        word: tuple(getattr(d, word) for d in dimensions)
        for word in ("stride", "padding", "dilation")
    }
    letters = "DHW"[3 - len(dimensions) :]
    layout = f"NC{letters}" if rest.get("channels_first") else f"N{letters}C"
    made: Task = make(
        rest.get("images", 1),
        *(d.extent for d in dimensions),
        channels,
        columns,
        tuple(d.taps for d in dimensions),
        **windows,
        groups=rest.get("groups", 1),
        dtype="float16",
        target=chip,
        layout=layout,
    )
    return made


def _problem(name: str) -> GemmProblem:
    dimensions, channels, columns, rest = CASES[name]
    groups = rest.get("groups", 1)
    return conv_problems.problem(
        dimensions, channels // groups, columns // groups, dtype="float16", out="float16", **rest
    )


@pytest.mark.parametrize("name", CASES)
def test_problems_are_those_of_the_workloads(name: str) -> None:
    problem, task = _problem(name), _task(name, "h200")
    assert template.unsuited(problem) is None
    params = task.mod["main"].params
    sizes = [math.prod(int(extent) for extent in param.shape) for param in params]
    taken = [conv_problems.elements_of(problem, operand) for operand in (problem.a, problem.b)]
    batches = (problem.batch - 1) * problem.output.strides[0]
    last = np.dot((problem.m - 1, problem.n - 1), problem.output.strides[1:])
    assert [*taken, batches + last + 1] == sizes
    assert {str(param.dtype) for param in params} == {"float16"}


@pytest.mark.parametrize("name", CASES)
class TestOnGpu:
    """On an sm_90 device."""

    pytestmark = pytest.mark.gpu

    def test_random_decisions_compute_the_program(self, name: str) -> None:
        task = _task(name, "cuda")
        arch = str(task.target.attrs["arch"])
        if not template.runs_on(arch):
            pytest.skip("needs a GPU of sm_90")
        problem, hardware = _problem(name), target.hardware(task.target)
        both = (
            template.HopperGemm(problem, hardware),
            template.HopperGemm(problem.swapped, hardware, True),
        )
        on_gpu.check(task, both)
