"""Uneven windows become windows of one size, and compute the same."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import te, topi

from felix.task import Task
from felix.tir import windows


def pool(kind: str) -> list[te.Tensor]:
    x = te.placeholder((1, 2, 15, 17), name="x")
    return [x, topi.nn.adaptive_pool(x, (4, 5), kind)]


@pytest.mark.parametrize("kind", ["avg", "max"])
def test_the_result_is_that_of_the_uneven_windows(kind: str) -> None:
    func = te.create_prim_func(pool(kind))
    programs = {"uneven": func, "even": Task.from_te(pool(kind)).func}
    named = {name: f.with_attr("global_symbol", name) for name, f in programs.items()}
    library = tvm.tirx.build(tvm.IRModule(named), "llvm")
    data = -np.random.default_rng(0).random((1, 2, 15, 17), dtype="float32")
    results = {}
    for name in programs:
        tensors = [tvm.runtime.tensor(a) for a in (data, np.zeros((1, 2, 4, 5), "float32"))]
        library[name](*tensors)
        results[name] = tensors[1].numpy()
    np.testing.assert_allclose(results["even"], results["uneven"], rtol=1e-6)


def test_a_program_without_such_windows_stays_as_it_is() -> None:
    x = te.placeholder((6, 8), name="x")
    func = te.create_prim_func([x, topi.sum(x, axis=1)])
    assert windows.even(func).same_as(func)
