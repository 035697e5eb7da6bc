"""What a task's unscheduled program computes, beside its operator's PyTorch form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
import tvm

from felix.runner.checking import reference
from felix.task import Task
from felix.workloads import torch_forms


def run(task: Task, inputs: Sequence[np.ndarray]) -> np.ndarray:
    """Run the unscheduled program on numpy inputs; the last parameter is the output.

    It runs once, so LLVM need not make it fast.
    """
    params = task.func.params
    assert len(inputs) == len(params) - 1
    out = params[-1].ty
    result = np.zeros([int(e) for e in out.shape], reference.np_dtype(str(out.dtype)))
    arguments = [tvm.runtime.tensor(array) for array in (*inputs, result)]
    quick = tvm.target.Target({**task.target.export(), "opt-level": 0})
    tvm.tirx.build(task.mod, quick)["main"](*arguments)
    return arguments[-1].numpy()


def random_inputs(task: Task, seed: int = 0) -> list[np.ndarray]:
    """Floats in [0.5, 1.5), integers in [-9, 9]."""
    rng = np.random.default_rng(seed)
    inputs = []
    for param in task.func.params[:-1]:
        shape, dtype = [int(e) for e in param.ty.shape], str(param.ty.dtype)
        values = rng.uniform(0.5, 1.5, shape)
        if not reference.is_float(dtype):
            values = rng.integers(-9, 10, shape)
        inputs.append(values.astype(reference.np_dtype(dtype)))
    return inputs


def check(operator: str, params: Mapping[str, Any], task: Task, rtol: float) -> None:
    """The program agrees with the form in float64, and so does the form in the program's type."""
    inputs = random_inputs(task)
    got = run(task, inputs)
    form = torch_forms.form(operator, params)
    exact = form.call(*[torch.from_numpy(array.astype("float64")) for array in inputs]).numpy()
    assert got.shape == exact.shape
    np.testing.assert_allclose(got.astype("float64"), exact, rtol=rtol, atol=rtol)
    same = form.call(*form.stored([torch_forms.tensor(array.copy()) for array in inputs]))
    assert same.dtype == torch_forms.tensor(got).dtype and tuple(same.shape) == got.shape
    np.testing.assert_allclose(same.double().numpy(), exact, rtol=rtol, atol=rtol)
