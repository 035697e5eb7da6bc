"""Programs as the problems that they are recognised as."""

from __future__ import annotations

import pathlib
import random
from collections.abc import Mapping
from typing import Any

import tvm
from tvm import te

import felix
from felix import workloads
from felix.builder import task_program
from felix.runner.checking import reference
from felix.templates.gemm.problem import GemmProblem
from felix.templates.gemm.recognise import NotRecognised, recognise
from tests.support.templates import gemm_problems


def program(*tensors: te.Tensor) -> tvm.IRModule:
    """Of tensors, the last of which are the results."""
    return felix.Task.from_te(list(tensors), "llvm", name="program").mod


def convolution(n_axes: int, *sizes: Any, target: str = "llvm", **options: Any) -> felix.Task:
    """Of a convolution of one, two or three dimensions, by its workload."""
    operator = (workloads.conv1d, workloads.conv2d, workloads.conv3d)[n_axes - 1]
    return operator(*sizes, target=target, **options)


def random_convolution(rng: random.Random) -> tuple[int, tuple[int, ...], dict[str, Any]]:
    """Axes, sizes and options of one, with extents and moves of its own on each axis."""
    n_axes = rng.choice([1, 2, 2, 3])
    groups = rng.choice([1, 1, 2, 3])
    channels = groups * rng.choice([2, 3, 4, 6, 8, 10, 16, 24])
    columns = groups * rng.choice([2, 5, 8, 16])
    kernel = (*(rng.choice([1, 2, 3]) for _ in range(n_axes - 1)), rng.choice([2, 3, 4]))
    options = {
        "padding": tuple(rng.randint(0, k) for k in kernel),
        "stride": tuple(rng.choice([1, 1, 2, 3]) for _ in kernel),
        "dilation": tuple(rng.choice([1, 1, 2]) for _ in kernel),
        "groups": groups,
        "dtype": rng.choice(["bfloat16", "float16"]),
        "epilogue": rng.choice([(), ("bias",), ("bias", "relu", "residual")]),
    }
    if rng.random() < 0.3:
        options["layout"] = {1: "NCW", 2: "NCHW", 3: "NCDHW"}[n_axes]
    extents = tuple(rng.randint(7, 9) if n_axes < 3 else rng.randint(4, 7) for _ in kernel)
    if n_axes == 3:
        options["dilation"] = (1, 1, 1)
    sizes: tuple[Any, ...] = (rng.choice([1, 2]), *extents, channels, columns, kernel)
    return n_axes, sizes, options


def problem(mod: tvm.IRModule) -> GemmProblem:
    """What the program is; it is recognised."""
    made = recognise(mod)
    assert isinstance(made, GemmProblem), made
    return made


def reason(mod: tvm.IRModule) -> str:
    """Why the program is not recognised."""
    made = recognise(mod)
    assert isinstance(made, NotRecognised)
    return made.reason


def check(
    programs: Mapping[str, tvm.IRModule], folder: pathlib.Path, wide: Mapping[str, float]
) -> None:
    """The problems, computed by numpy, give what TVM builds of the programs.

    Args:
        wide: tolerances by the names of programs that have their own.
    """
    problems = {name: problem(mod) for name, mod in programs.items()}
    functions = gemm_problems.compile_epilogues([*problems.values()], folder)
    for (name, made), function in zip(problems.items(), functions, strict=True):
        mod = programs[name]
        arrays = reference.inputs(task_program.arguments(mod), 1, positive=False)
        tensors = [tvm.runtime.tensor(array) for array in arrays]
        tvm.tirx.build(mod, "llvm")["main"](*tensors)
        param, values = gemm_problems.evaluate(made, arrays, function)
        limit = wide.get(name, task_program.tolerance(mod))
        assert reference.mismatch(values, tensors[param].numpy(), limit) is None, name
