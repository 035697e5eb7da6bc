"""Operands that TMA cannot read where they lie are copied: the kernel's text run on the CPU."""

from __future__ import annotations

import pathlib

import numpy as np
import pytest

from felix.templates.gemm.hopper import helpers
from tests.support.templates import conv_problems, hopper_problems, packing
from tests.support.templates.conv_problems import Dimension


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
    packs = helpers.packs(problem)
    assert [pack.name for pack in packs] == ["pack_a", "pack_b"]
    rng = np.random.default_rng(0)
    sources = [rng.integers(1, 100, 2000).astype(storage) for _ in packs]
    copies = packing.run(packs, sources, storage, tmp_path)
    for pack, source, copy in zip(packs, sources, copies, strict=True):
        matrix = pack.source
        batches = batch if matrix.batch_stride else 1
        for place in np.ndindex(batches, matrix.outer, matrix.inner):
            old = np.dot(place, (matrix.batch_stride, matrix.outer_stride, matrix.inner_stride))
            new = np.dot(place, (pack.copy.batch_stride, pack.copy.outer_stride, 1))
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
    packs = helpers.packs(problem)
    images, taps = (
        np.random.default_rng(i).integers(1, 1 << 16, shape, dtype=np.uint16)
        for i, shape in enumerate(((3, 11, 5, 4), (6, 11, 3, 2)))
    )
    copies = packing.run(packs, [images, taps], np.uint16, tmp_path)
    for array, copy in ((images, copies[0]), (taps, copies[1])):
        last = np.moveaxis(array, 1, 3)
        padded = np.pad(last, [(0, 0)] * 3 + [(0, 5)])  # 11 channels of 2 bytes: 32 bytes
        np.testing.assert_array_equal(copy.reshape(padded.shape), padded)
