"""Offsets, two batch axes and masks in both generators, compared with numpy."""

from __future__ import annotations

import dataclasses
import pathlib

import numpy as np
import pytest

from felix.runner.checking import reference
from felix.runner.cuda import nvrtc
from felix.templates.gemm.ampere import program
from felix.templates.gemm.ampere.decisions import Decisions
from felix.templates.gemm.hopper import design as designs
from felix.templates.gemm.hopper import layout
from felix.templates.gemm.hopper.template import ARCH
from felix.templates.gemm.problem import GemmProblem
from tests.support import share
from tests.support.templates import attention_problems as attention
from tests.support.templates import (
    cubin,
    gemm_problems,
    hopper_problems,
    host_gpu,
    kernels,
    packing,
)

_AMPERE = kernels.decisions("warps_m=2 warps_n=2 stages=3", kernels.SMALL)
_HOPPER = kernels.decisions("block_m=64 block_n=64 stages=3 consumers=1", hopper_problems.PLAIN)


def _inside(problem: GemmProblem, array: np.ndarray) -> np.ndarray:
    """C of an output's array."""
    shape = (attention.IMAGES, problem.m, attention.HEADS, problem.n)
    return array[attention.BEFORE : -attention.BEHIND].reshape(shape)


@pytest.mark.parametrize(
    ("problem", "changes"),
    [
        (attention.scores(40, 48, 64), {}),
        (attention.scores(37, 29, 64, before=3), {}),
        (attention.scores(33, 50, 32, before=4, out="bfloat16"), {"stages": 2}),
        (attention.scores(20, 36, 128, "float16", shared_keys=True), {"split_k": 2}),
        (attention.scores(36, 20, 64).swapped, {}),
    ],
    ids=["aligned", "elements", "eight_bytes", "split_shared", "swapped"],
)
def test_ampere_text_computes_masked_scores(
    problem: GemmProblem, changes: dict[str, int], tmp_path: pathlib.Path
) -> None:
    generated = program.program(problem, Decisions.of(_AMPERE | changes), "sm_80")
    library = host_gpu.build(generated, problem, tmp_path)
    plain = problem if problem.epilogue.places[0].axis == 2 else problem.swapped
    for late in (True, False):
        arrays = attention.arrays(plain)
        assert host_gpu.run(library, generated, arrays, late=late) == 0
        actual = _inside(plain, arrays[2]).astype(np.float64)
        assert reference.mismatch(actual, attention.expected(plain, arrays), 1e-2) is None
        edges = np.concatenate([arrays[2][: attention.BEFORE], arrays[2][-attention.BEHIND :]])
        assert (edges.view(np.uint8) == 0x5A).all()


def test_the_problem_means_what_numpy_computes(tmp_path: pathlib.Path) -> None:
    problem = attention.scores(5, 7, 8, before=3)
    (epilogue,) = gemm_problems.compile_epilogues([problem], tmp_path)
    arrays = attention.arrays(problem)
    _, output = gemm_problems.evaluate(problem, arrays, epilogue)
    expected = attention.expected(problem, arrays)
    assert reference.mismatch(_inside(problem, output), expected, 1e-2) is None


@pytest.mark.parametrize("shared_keys", [False, True])
@pytest.mark.parametrize("before", [0, 8])
def test_tensor_maps_find_every_element(before: int, shared_keys: bool) -> None:
    """Of operands and of the output: the address by coordinates is the one by the strides."""
    problem = attention.scores(40, 48, 64, before=before, shared_keys=shared_keys)
    template = hopper_problems.template(problem)
    design = template.design(_HOPPER | {"tma_store": 2})
    assert design.matrices == designs.sources(design.problem)  # nothing is packed
    output = designs.store_tile(design.final, 64).tensor_map(problem.m, problem.n)
    sides = (
        (design.a.tensor_map(), problem.a, (1, 2)),
        (design.b.tensor_map(), problem.b, (1, 2)),
        (output, problem.output, (1, 2)),
    )
    for tensor_map, tensor, (row, inner) in sides:
        size = 2 if tensor_map.dtype == "bfloat16" else 4
        assert tensor_map.offset_bytes % layout.ALIGNMENT == 0
        assert all(stride % layout.ALIGNMENT == 0 for stride in tensor_map.strides_bytes)
        for batch in range(problem.batch):
            head, image = batch % attention.HEADS, batch // attention.HEADS
            z = head if tensor_map.extents[2] > 1 else 0
            assert image < tensor_map.extents[3]
            for y, x in ((0, 0), (3, 5), (17, 40)):
                steps = (size, *tensor_map.strides_bytes)
                address = tensor_map.offset_bytes + int(np.dot(steps, (x, y, z, image)))
                element = tensor.offset + image * tensor.outer_stride
                element += head * tensor.strides[0] + y * tensor.strides[row]
                element += x * tensor.strides[inner]
                assert address == element * size


def test_hopper_constants_name_the_coordinates() -> None:
    """Heads and images are coordinates of copies; a shared operand's are 0."""
    shared = attention.scores(64, 64, 64, shared_keys=True)
    source = hopper_problems.template(shared).generate(_HOPPER).source
    a, b = source.split("struct A {")[1].split("struct B {")
    assert "inner_batch(int batch) { return batch % 3; }" in a
    assert "inner_batch(int batch) { return 0; }" in b.split("};")[0]
    assert "outer_batch(int batch) { return batch / 3; }" in b.split("};")[0]


def test_unaligned_heads_are_packed_by_their_strides(tmp_path: pathlib.Path) -> None:
    problem = attention.scores(9, 7, 20, before=3, shared_keys=True)
    packs = designs.packed(problem)[0]
    assert [pack.source.batches.matrices for pack in packs] == [6, 2]
    rng = np.random.default_rng(0)
    source = rng.integers(1, 60000, 4000).astype(np.uint16)
    copies = packing.run(packs, [source, source], np.uint16, tmp_path)
    for pack, operand, copy in zip(packs, (problem.a, problem.b), copies, strict=True):
        for batch in range(problem.batch):
            head, image = batch % attention.HEADS, batch // attention.HEADS
            for line, k in np.ndindex(pack.source.outer, pack.source.inner):
                old = operand.offset + image * operand.outer_stride + head * operand.strides[0]
                old += line * operand.strides[1] + k
                place = (image, head, line, k)
                strides = (pack.copy.batches.outer_stride, pack.copy.batches.stride)
                new = int(np.dot((*strides, pack.copy.outer_stride, 1), place))
                assert copy[new] == source[old]


@pytest.mark.parametrize(
    ("changes", "tma_store"), share.crossed([{}, {"split_k": 2}, {"cluster_m": 2}], [1, 2])
)
def test_hopper_kernels_compile(tma_store: int, changes: dict[str, int]) -> None:
    problem = attention.scores(256, 256, 128, shared_keys=True)
    values = _HOPPER | {"tma_store": tma_store} | changes
    generated = hopper_problems.template(problem).generate(values)
    binary = nvrtc.compile_cubin(generated.source, ARCH)
    cubin.check(binary, generated.plan.launches)


@pytest.mark.parametrize("arch", ["sm_80", "sm_86", "sm_89"])
def test_ampere_kernels_compile(arch: str) -> None:
    problem = attention.scores(256, 256, 128, before=4)
    generated = program.program(problem, Decisions.of(_AMPERE), arch)
    assert cubin.stack_bytes(nvrtc.compile_cubin(generated.source, arch), "gemm") == 0


def test_an_output_that_begins_between_16_bytes_is_not_stored_by_tma() -> None:
    problem = attention.scores(40, 48, 64)
    moved = dataclasses.replace(
        problem, output=dataclasses.replace(problem.output, offset=attention.BEFORE + 1)
    )
    assert designs.is_copied_by_tma(problem) and not designs.is_copied_by_tma(moved)
