"""Powers with a whole exponent, which fast math makes NaN of a negative base, are products;
samples of 8-bit types build."""

from __future__ import annotations

import pathlib

import numpy as np
import pytest
import tvm
from tvm import te, tirx

import felix
from felix.builder import build, payload
from felix.builder.cuda import build as cuda_build
from felix.builder.cuda import launches
from felix.runner import description
from felix.runner.cuda import nvrtc
from felix.task import Task
from tests.support import share

BASE = np.array([-3.0, -1.5, -1.0, -0.25, 0.5, 2.0])


def power(dtype: str, exponent: float) -> tvm.IRModule:
    x = te.placeholder((BASE.size,), dtype, "x")
    out = te.compute(x.shape, lambda i: tirx.pow(x[i], tirx.const(exponent, dtype)))
    return tvm.IRModule({"main": te.create_prim_func([x, out])})


def sum_of_powers(exponent: float) -> Task:
    """A program from outside: the sums of powers of what is left of an exponential."""
    x = te.placeholder((32, 256), name="x")
    k = te.reduce_axis((0, 256), "k")
    y = te.compute((32,), lambda i: te.sum(te.power(te.exp(x[i, k]) - 1.0, exponent), k))
    return Task.from_te([x, y], target="h200")


@pytest.mark.parametrize("exponent", [0, 1, 2, 3, 7, 16, 61, -1, -4])
def test_a_product_has_the_value_of_the_power(exponent: int) -> None:
    made = launches.PREPARED(power("float32", exponent))
    assert "T.pow" not in made.script()
    out = tvm.runtime.tensor(np.zeros(BASE.size, "float32"))
    tvm.compile(made, target="llvm")["main"](tvm.runtime.tensor(BASE.astype("float32")), out)
    np.testing.assert_allclose(out.numpy(), BASE**exponent, rtol=1e-5)


def test_of_16_bits_it_is_rounded_once() -> None:
    made = launches.PREPARED(power("float16", 5))
    x, out = BASE.astype("float16"), tvm.runtime.tensor(np.zeros(BASE.size, "float16"))
    tvm.compile(made, target="llvm")["main"](tvm.runtime.tensor(x), out)
    np.testing.assert_array_equal(out.numpy(), (x.astype("float64") ** 5).astype("float16"))


@pytest.mark.parametrize(
    ("dtype", "exponent"), [("float32", 0.5), ("float32", 2.5), ("float32", 65), ("float64", 2)]
)
def test_other_powers_stay(dtype: str, exponent: float) -> None:
    mod = power(dtype, exponent)
    assert launches.PREPARED(mod).script() == mod.script()


def test_candidates_and_what_ships_have_products(tmp_path: pathlib.Path) -> None:
    """Measured, exported and as a script, in each sketch; sums across threads among them."""
    task = sum_of_powers(3.0)
    assert "T.pow" in task.mod.script()  # the user's program stays what it is
    for number, sketch in enumerate(felix.trace_sketches(task)):
        mod = sketch.schedule(sketch.sample(1, seed=0)[0]).mod
        reply = cuda_build.handle(
            payload.of(mod, task.target), str(tmp_path / str(number)), max_source_bytes=10**6
        )
        _, cubin = description.read_program(reply["library"])
        source = build.module(mod, task.target).imports[0].inspect_source()
        assert "expf(" in source and "pow" not in source
        assert cubin == cuda_build.cubin(source, task.target)
        script = build.prepared(mod, task.target).script()
        again = cuda_build.lower(tvm.script.from_source(script), task.target).source
        assert cubin == nvrtc.compile_cubin(again.text, "sm_90", headers=again.headers)


# Sampled schedules of 8-bit types build; no GPU is needed for that.


def _lowered(text: str, count: int) -> list[cuda_build.DeviceProgram]:
    """Of `count` samples of each sketch, unrolled by TVM as they are measured."""
    task: Task = felix.workloads.parse(text, target="h200")
    return [
        cuda_build.lower(sketch.schedule(row).mod, task.target)
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
    lowered = _lowered(text, share.rounds(1, 6))
    assert all("__global__" in program.source.text for program in lowered)


def test_padding_of_int8_is_a_valid_constant() -> None:
    """TVM writes 8 lanes of a constant as `make_int2` of 8 arguments."""
    text = "conv2d:1,14,14,32,48,3,padding=1,dtype=int8,epilogue=bias"
    programs = _lowered(text, share.rounds(1, 6))
    constant = "(signed char)0, " * 7
    assert all(constant not in program.source.text for program in programs)
