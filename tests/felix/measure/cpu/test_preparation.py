"""Programs for a CPU are prepared alike where they are measured and in networks."""

from __future__ import annotations

import numpy as np
import tvm
import tvm_ffi
from tvm import te, tirx

from felix.measure.cpu import preparation
from felix.network import executable

CPU = tvm.target.Target("llvm")
GPU = tvm.target.Target({"kind": "cuda", "arch": "sm_90"})
NAME = "felix.PreparedForCPU"


def program() -> tvm.IRModule:
    """An exp, and an integer divided by data."""
    n, d = (te.placeholder((4,), "int32", name) for name in "nd")
    x = te.placeholder((4,), "float32", "x")
    out = te.compute(
        (4,), lambda i: te.exp(x[i]) * x[i] + tirx.floordiv(n[i], d[i]).astype("float32")
    )
    return tvm.IRModule({"main": te.create_prim_func([n, d, x, out])})


def test_networks_prepare_theirs_on_a_cpu_alone() -> None:
    names = [each.info.name for each in executable._pipeline(CPU).passes]
    assert names.count(NAME) == 1
    assert NAME not in [each.info.name for each in executable._pipeline(GPU).passes]


def test_all_is_done_and_as_a_pass_as_well() -> None:
    mod = program()
    prepared = preparation.prepared(mod)
    assert tvm_ffi.structural_equal(preparation.PREPARED(mod), prepared, map_free_vars=True)
    assert "T.exp" in mod.script() and "T.exp(" not in prepared.script()
    n, d = np.array([7, 7, -7, -(2**31)], "int32"), np.array([2, 0, -1, -1], "int32")
    x, out = np.zeros(4, "float32"), tvm.runtime.tensor(np.zeros(4, "float32"))
    given = [tvm.runtime.tensor(each) for each in (n, d, x)]
    tvm.compile(prepared, target="llvm")["main"](*given, out)  # a trap would end the process
    assert out.numpy()[[0, 2, 3]].tolist() == [3.0, 7.0, -(2.0**31)]


def test_a_module_that_stays_is_the_same_one() -> None:
    mod = program()
    assert preparation.changed(mod, lambda func: func) is mod
