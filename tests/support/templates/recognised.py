"""Programs as the problems that they are recognised as."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping

import tvm
from tvm import te

import felix
from felix.measure import task_program
from felix.measure.checking import reference
from felix.templates.gemm.problem import GemmProblem
from felix.templates.gemm.recognise import NotRecognised, recognise
from tests.support.templates import gemm_problems


def program(*tensors: te.Tensor) -> tvm.IRModule:
    """Of tensors, the last of which are the results."""
    return felix.Task.from_te(list(tensors), "llvm", name="program").mod


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
