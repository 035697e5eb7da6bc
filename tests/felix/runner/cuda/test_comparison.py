"""Outputs of every dtype are compared on the device, not copied to the host and compared there."""

from __future__ import annotations

import ctypes
import pathlib
import re
import subprocess

import numpy as np
import pytest
import tvm
from tvm import te

from felix import target
from felix.builder.cuda import reference as cuda_reference
from felix.runner import protocol
from felix.runner.checking import reference
from felix.runner.cuda import tensors
from tests.support import tir_programs
from tests.support.cuda import bench, fakes

DTYPES = ("bfloat16", "float16", "float8_e4m3fn", "float8_e5m2", "int8", "int32")
N = 64


def _product(dtype: str, accumulator: str, out: str) -> tvm.IRModule:
    """A · Bᵀ with the sums in `accumulator`."""
    a, b = (te.placeholder((8, 16), dtype, name=name) for name in "AB")
    k = te.reduce_axis((0, 16), "k")
    sums = te.compute(
        (8, 8),
        lambda i, j: te.sum(a[i, k].astype(accumulator) * b[j, k].astype(accumulator), axis=k),
    )
    cast = te.compute((8, 8), lambda i, j: sums[i, j].astype(out))
    return tvm.IRModule({"main": te.create_prim_func([a, b, cast])})


@pytest.mark.parametrize(
    ("dtype", "accumulator", "out"),
    [
        ("bfloat16", "float32", "bfloat16"),
        ("float16", "float32", "float32"),
        ("int8", "int32", "int32"),
        ("float8_e4m3fn", "float32", "bfloat16"),
        ("float8_e5m2", "float32", "float16"),
        ("float8_e4m3fn", "float32", "float8_e4m3fn"),
    ],
)
def test_a_reference_on_the_device_compiles(dtype: str, accumulator: str, out: str) -> None:
    """Without libcu++, which NVIDIA's package of headers does not have."""
    program = cuda_reference.program(_product(dtype, accumulator, out), target.parse("h200"))
    assert program is not None
    plan, cubin = program
    assert cubin.startswith(b"\x7fELF") and len(plan.launches) == 2


def test_float8_is_decoded_as_it_is_meant(tmp_path: pathlib.Path) -> None:
    """The function of the helper kernels, compiled for the host, on all 256 values."""
    match = re.search(r"__device__ (float of_e4m3fn.*?\n}\n)", tensors.SOURCE, re.DOTALL)
    assert match is not None
    text = (
        "#include <math.h>\n#include <string.h>\n"
        "static float __int_as_float(int i) { float f; memcpy(&f, &i, 4); return f; }\n" + match[1]
    )
    command = ["cc", "-shared", "-fPIC", "-x", "c", "-", "-lm", "-o", str(tmp_path / "host.so")]
    subprocess.run(command, input=text, text=True, check=True)
    decode = ctypes.CDLL(str(tmp_path / "host.so")).of_e4m3fn
    decode.restype, decode.argtypes = ctypes.c_float, [ctypes.c_ubyte]
    codes = np.arange(256, dtype=np.uint8)
    expected = codes.view(reference.np_dtype("float8_e4m3fn")).astype(np.float32)
    np.testing.assert_array_equal(np.array([decode(code) for code in codes]), expected)


@pytest.mark.parametrize("dtype", DTYPES)
def test_only_outputs_that_differ_leave_the_device(
    dtype: str, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    def copying(more: int) -> fakes.Kernel:
        kind = reference.np_dtype(dtype)
        return fakes.computing(lambda a: (a.astype(np.float32) + more).astype(kind), N, kind)

    kernels = {"main_kernel": copying(0), "right": copying(0), "wrong": copying(100)}
    made = bench.Bench.make(monkeypatch, tmp_path, kernels)
    folder = made.prepare(tir_programs.mapped(lambda a: a, (N,), dtype, names="a"))

    def downloads() -> int:
        return made.driver.log.count("cuMemcpyDtoH_v2")

    before = downloads()
    assert made.run(folder, "right", n_params=2)["latencies_us"]
    assert downloads() - before == 1  # how many elements differ
    reply = made.run(folder, "wrong", n_params=2)
    assert reply["error"] == protocol.ErrorClass.WRONG_RESULT
    assert "64 of 64 elements differ" in reply["message"] and "first at [0]" in reply["message"]
    # how many, and two elements; of integers, which are compared fast, both tensors
    assert downloads() - before == 1 + 1 + 2
    bytes_copied = made.driver.copied_to_host[-2:]
    item_bytes = reference.np_dtype(dtype).itemsize
    assert bytes_copied == [item_bytes * (N if dtype.startswith("int") else 1)] * 2
