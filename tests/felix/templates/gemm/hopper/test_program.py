"""Generated programs: they compile without spills, and plans fit the device's limits.

Operands that TMA cannot read where they lie are copied: the kernel's text run on the CPU.
"""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import pytest

from felix import errors, launch_plan
from felix.runner.cuda import nvrtc
from felix.templates.gemm.hopper import design as designs
from felix.templates.gemm.hopper.template import ARCH, HopperGemm
from felix.templates.generated import GeneratedProgram
from tests.support import gpu, share
from tests.support.templates import conv_problems, cubin, hopper_problems, packing, template_rows
from tests.support.templates.conv_problems import Dimension

needs_nvrtc = pytest.mark.skipif(not gpu.has_nvrtc(), reason="NVRTC is not here")

#: Kernels that between them have every part of the generator: problem, and decisions that differ.
_KERNELS: dict[str, tuple[dict[str, Any], dict[str, int]]] = {
    "largest tile": ({}, dict(block_n=256, tma_store=2, cluster_m=2)),
    "three warpgroups": ({}, dict(block_m=192, block_n=192, consumers=3)),
    "tiles in turn": (
        dict(out="float32", epilogue=1),
        dict(block_n=80, tiles_at_once=2, tma_store=2),
    ),
    "sums in a cluster": (dict(a_transposed=True), dict(cluster_k=4, block_n=96)),
    "split, odd extents": (
        dict(m=197, n=1021, k=509, b_transposed=False, epilogue=2),
        dict(split_k=3, tma_store=2),
    ),
    "transposed output": (
        dict(c_transposed=True, dtype="float16", out="float16", batch=3),
        dict(tma_store=2),
    ),
    "int8": (dict(dtype="int8", out="int32"), dict(block_k=128, cluster_n=2)),
    "float8": (dict(dtype="float8_e4m3fn"), dict(block_k=256, stages=2, blocks_per_sm=1)),
    "tf32": (dict(dtype="float32", out="float32"), dict(block_k=32, blocks_per_sm=1)),
}


def _template(name: str) -> HopperGemm:
    extents = {"m": 512, "n": 768, "k": 1024} | _KERNELS[name][0]
    return hopper_problems.template(hopper_problems.problem(**extents))


def _program(name: str) -> GeneratedProgram:
    return _template(name).generate(hopper_problems.PLAIN | _KERNELS[name][1])


def _rows(name: str) -> dict[str, dict[str, float]]:
    return template_rows.rows_of(_template(name), hopper_problems.PLAIN | _KERNELS[name][1])


@needs_nvrtc
@pytest.mark.parametrize("name", share.of(_KERNELS, 5))
def test_kernels_compile_without_spills(name: str) -> None:
    """Of each thread, at the launch, there are the registers that the features say."""
    generated, rows = _program(name), _rows(name)
    binary = nvrtc.compile_cubin(generated.source, ARCH)
    cubin.check(binary, generated.plan.launches)
    assert cubin.registers(binary, "gemm") == rows["gemm"]["registers"]


@pytest.mark.parametrize("name", _KERNELS)
def test_plans_survive_json_and_name_their_tensors(name: str) -> None:
    generated = _program(name)
    plan = generated.plan
    assert launch_plan.LaunchPlan.from_json(plan.to_json()) == plan
    tensors = plan.n_params + len(plan.workspaces)
    for launch in plan.launches:
        for argument in launch.args:
            number = argument.tensor if isinstance(argument, launch_plan.TensorMap) else argument
            assert 0 <= number < tensors
        assert launch.extents[0] % launch.cluster[0] == 0


@pytest.mark.parametrize("seed", range(10))
def test_tensor_maps_are_what_the_driver_takes(seed: int) -> None:
    """The limits of cuTensorMapEncodeTiled, and boxes as large as the stages they fill."""
    template, decisions = hopper_problems.drawn(seed)
    generated = template.generate(decisions)
    sizes = {"bfloat16": 2, "float16": 2, "float32": 4}
    maps = [
        argument
        for launch in generated.plan.launches
        for argument in launch.args
        if isinstance(argument, launch_plan.TensorMap)
    ]
    assert len(maps) == 1 + decisions["tma_store"]
    for tensor_map in maps:
        size = sizes[tensor_map.dtype]
        assert all(stride % 16 == 0 and stride > 0 for stride in tensor_map.strides_bytes)
        assert all(0 < box <= 256 for box in tensor_map.box)
        inner = tensor_map.box[0] * size
        assert inner % 16 == 0
        assert inner == tensor_map.swizzle_bytes or (tensor_map.swizzle_bytes == 0 and inner == 16)


def test_illegal_decisions_are_refused() -> None:
    template = hopper_problems.template(hopper_problems.problem(512, 768, 1024))
    with pytest.raises(errors.DecisionError, match="stages is one of"):
        template.generate(hopper_problems.PLAIN | dict(stages=9))
    with pytest.raises(errors.DecisionError, match="shared memory of a block"):
        template.generate(hopper_problems.PLAIN | dict(block_n=256, stages=12))
    with pytest.raises(errors.DecisionError, match="rows of a tile per warpgroup"):
        template.generate(hopper_problems.PLAIN | dict(block_m=64))


def test_equal_decisions_make_equal_programs() -> None:
    first, second = _program("split, odd extents"), _program("split, odd extents")
    assert first == second and first.fingerprint == second.fingerprint
    assert first.fingerprint != _program("int8").fingerprint


def test_workspaces_hold_copies_and_partial_sums() -> None:
    plan = _program("split, odd extents").plan
    a_copy, b_copy, sums = 197 * 512 * 2, 509 * 1024 * 2, 4 * 3 * 197 * 1024
    assert plan.workspaces == (a_copy, b_copy, sums)
    assert [launch.kernel for launch in plan.launches] == ["pack", "gemm", "reduce"]
    assert len(_program("sums in a cluster").plan.launches) == 1


@pytest.mark.parametrize(
    ("dtype", "storage", "b_transposed", "b_shared"),
    [
        ("bfloat16", np.uint16, True, False),
        ("float16", np.uint16, False, True),
        ("int8", np.int8, False, False),
    ],
)
def test_copies_are_the_operands(
    dtype: str, storage: type, b_transposed: bool, b_shared: bool, tmp_path: pathlib.Path
) -> None:
    m, n, k, batch = 5, 9, 37, 3
    problem = hopper_problems.problem(
        m,
        n,
        k,
        batch=batch,
        dtype=dtype,
        out="float32",
        b_transposed=b_transposed,
        b_shared=b_shared,
    )
    packs = designs.packed(problem)[0]
    assert [pack.name for pack in packs] == ["pack_a", "pack_b"]
    rng = np.random.default_rng(0)
    sources = [rng.integers(1, 100, 2000).astype(storage) for _ in packs]
    copies = packing.run(packs, sources, storage, tmp_path)
    for pack, source, copy in zip(packs, sources, copies, strict=True):
        matrix = pack.source
        batches = batch if matrix.batches.stride else 1
        for place in np.ndindex(batches, matrix.outer, matrix.inner):
            old = np.dot(place, (matrix.batches.stride, matrix.outer_stride, matrix.inner_stride))
            new = np.dot(place, (pack.copy.batches.stride, pack.copy.outer_stride, 1))
            assert copy[new] == source[old]
    # 8-bit tensor cores take K-major operands alone, 16-bit ones both orders.
    assert packs[1].source.is_k_major == (b_transposed or dtype == "int8")


@pytest.mark.parametrize("images_are_batch", [True, False])
def test_copies_of_channels_first_are_pixels_and_taps_of_channels(
    images_are_batch: bool, tmp_path: pathlib.Path
) -> None:
    problem = conv_problems.problem(
        [Dimension(5, 3), Dimension(4, 2)],
        11,
        6,
        images=3,
        channels_first=True,
        images_are_batch=images_are_batch,
        weights="oihw",
    )
    packs = designs.packed(problem)[0]
    images, taps = (
        np.random.default_rng(i).integers(1, 1 << 16, shape, dtype=np.uint16)
        for i, shape in enumerate(((3, 11, 5, 4), (6, 11, 3, 2)))
    )
    copies = packing.run(packs, [images, taps], np.uint16, tmp_path)
    for array, copy in ((images, copies[0]), (taps, copies[1])):
        last = np.moveaxis(array, 1, 3)
        padded = np.pad(last, [(0, 0)] * 3 + [(0, 5)])  # 11 channels of 2 bytes: 32 bytes
        np.testing.assert_array_equal(copy.reshape(padded.shape), padded)
