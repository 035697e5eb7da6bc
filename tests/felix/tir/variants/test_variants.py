"""What holds of every variant: it computes the same, and its formulas hold.

Extents and windows that are padded.
"""

from __future__ import annotations

import functools
from typing import Any

import pytest
import tvm

import felix
from felix import workloads
from felix.builder.cuda import build as cuda_build
from felix.space import sketch as sketching
from felix.templates import registry
from felix.tir.design_space import variants
from felix.tir.design_space.variants import padded_extents
from felix.tir.design_space.variants.padded_windows import window_multiple
from tests.felix.tir.variants.variant_programs import (
    CPU,
    GPU,
    check_same,
    program,
    searched,
    texts,
)
from tests.support import legal_rows, share

CUDA = "cuda -arch=sm_90"

SPLIT = {
    "few rows": functools.partial(workloads.gemm, 2, 512, 512, epilogue=("bias", "relu")),
    "channels": functools.partial(workloads.conv2d, 1, 7, 7, 64, 64, 3, padding=1),
    "window first": functools.partial(
        workloads.conv2d, 1, 7, 7, 3, 64, 32, padding=16, layout="NCHW"
    ),
    "mapped": functools.partial(workloads.reduce, (6, 2**17), (1,), kind="mean"),
    "rows": functools.partial(workloads.reduce, (6, 2**17), (1,), kind="max"),
    "everything": functools.partial(workloads.reduce, (48, 2**14)),
    "columns": functools.partial(workloads.reduce, (3001, 176), (0,), kind="mean"),
    "middle": functools.partial(workloads.reduce, (2, 3001, 99), (1,), kind="max"),
    "one row": functools.partial(workloads.gemm, 1, 512, 1031, epilogue=("bias", "relu")),
}

PADDED = {
    "primes": functools.partial(workloads.gemm, 67, 127, 67, epilogue=("bias", "relu")),
    "batch": functools.partial(workloads.gemm, 32, 197, 64, batch=2, transpose_b=True),
    "windows": functools.partial(
        workloads.conv2d, 1, 17, 14, 67, 37, 3, padding=1, layout="NCHW", epilogue=("relu",)
    ),
}


@pytest.mark.parametrize("name", share.of([*SPLIT, *PADDED], 2))
def test_a_variant_computes_what_the_task_does(name: str) -> None:
    task = (SPLIT | PADDED)[name]()
    every = variants.of_program(task.mod, GPU)
    prefix = [each for each in every if each.variant.name != "row_chain"][-1]  # has GPU threads
    check_same(task, program(task, prefix))


_MODELLED = "few rows,window first,rows,columns,middle,one row,primes,windows".split(",")


@pytest.mark.parametrize("name", share.of(_MODELLED, 2))
def test_formulas_of_variants_say_what_tvm_makes(name: str) -> None:
    """The first sketch of a variant, and one with a software pipeline."""
    task = (SPLIT | PADDED)[name](target=CUDA)
    sketches = [s for s in felix.trace_sketches(task) if s.variant != variants.STOCK]
    for sketch in (sketches[0], sketches[-1]):
        legal_rows.checked(sketch, 2, seed=2)


def test_a_variant_of_a_gpu_has_two_kernels_with_its_epilogue_in_the_second() -> None:
    sketch = felix.trace_sketches(SPLIT["few rows"](target=CUDA))[-1]
    mod = sketch.schedule(legal_rows.draw(sketch, 1, seed=1)[0]).mod
    launches = cuda_build.lower(mod, sketch.task.target).plan.launches
    assert len(launches) == 2


def test_the_tasks_own_program_comes_first() -> None:
    sketches = felix.trace_sketches(SPLIT["few rows"](target=CUDA))
    names = [sketch.variant.name for sketch in sketches]
    n_stock = names.count("stock")
    assert names == ["stock"] * n_stock + ["split_reduction"] * (len(names) - n_stock)
    assert [sketch.index for sketch in sketches] == list(range(len(names)))
    assert "split_reduction(parts=" in repr(sketches[-1])


def test_a_variant_that_tvm_cannot_make_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: tvm.s_tir.Schedule, *args: object, **options: object) -> None:
        raise RuntimeError("TVM cannot")

    task = SPLIT["rows"](target=CUDA)
    n_sketches = len(sketching.trace_sketches(task))
    monkeypatch.setattr(tvm.s_tir.Schedule, "rfactor", fail)
    assert len(sketching.trace_sketches(task)) == 2 < n_sketches


@pytest.mark.parametrize(
    ("module", "name", "lost"),
    [
        (variants, "of_program", "variants left out"),
        (registry, "templates_of", "no generated kernel"),
    ],
)
def test_a_defect_costs_variants_or_templates_alone(
    monkeypatch: pytest.MonkeyPatch, module: Any, name: str, lost: str
) -> None:
    def fail(*arguments: object) -> None:
        raise KeyError("a form that nobody thought of")

    task = SPLIT["few rows"](target=CUDA)
    monkeypatch.setattr(module, name, fail)
    said: list[str] = []
    sketches = sketching.sketches(task, on_left_out=said.append)
    assert {sketch.variant for sketch in sketches} & {variants.STOCK}
    assert any(lost in line and "please report it" in line for line in said)


def test_extents_are_padded_that_divide_badly() -> None:
    assert texts(workloads.gemm(197, 1021, 509), CPU) == [
        "padded_extents(loop0=16, loop1=64, loop2=64)"
    ]
    assert [padded_extents.multiple(extent) for extent in (100, 13, 344, 11008, 50257)] == [
        1,
        1,
        32,
        1,
        64,
    ]
    assert texts(workloads.gemm(197, 256, 256), CPU) == ["padded_extents(loop0=16)"]


def test_a_padded_program_replaces_one_that_tiles_cannot_divide() -> None:
    """Of the task's own, one sketch is left."""
    padded, split = "padded_extents", "padded_extents+split_reduction"
    prime = workloads.gemm(197, 3072, 768, target="h200")
    assert searched(prime) == ["stock", padded, padded, split, split]
    smooth = workloads.gemm(344, 768, 768, target="h200")
    assert searched(smooth)[:4] == ["stock"] * 3 + ["split_reduction"]
    assert "padded_extents" in searched(smooth)
    on_cpu = workloads.gemm(197, 256, 256)
    assert searched(on_cpu) == [sketch.variant.name for sketch in felix.trace_sketches(on_cpu)]


def test_windows_are_padded_that_move_along_an_extent_that_divides_badly() -> None:
    assert texts(workloads.conv2d(1, 35, 35, 127, 131, 3, padding=1), CPU) == [
        "padded_windows(loop1=36, loop2=36, loop3=144, loop4=128)"
    ]
    extents = (7, 13, 14, 17, 28, 35, 71, 147)
    grown = [-(-e // m) * m for e, m in zip(extents, map(window_multiple, extents), strict=True)]
    assert grown == [7, 13, 14, 18, 28, 36, 72, 152]
    assert texts(workloads.depthwise_conv2d(1, 65, 65, 67, 3, padding=1), CPU) == []
    assert texts(workloads.pool2d(1, 131, 131, 32, 3), CPU) == []


def test_a_padded_reduction_is_split_as_well() -> None:
    assert texts(workloads.gemm(1, 4099, 4093), GPU) == [
        "split_columns(parts=63)",
        "padded_extents(loop1=64, loop2=64)",
        "padded_extents+split_reduction(loop1=64, loop2=64, parts=32, loop=2)",
    ]
