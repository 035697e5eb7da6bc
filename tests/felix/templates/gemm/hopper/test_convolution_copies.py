"""Tiles of convolutions in shared memory are the problem's operands where tensor cores look."""

from __future__ import annotations

import dataclasses
import pathlib
import random
from typing import Any

import numpy as np
import pytest

from felix.templates.gemm.hopper import design as designs
from felix.templates.gemm.hopper import layout
from felix.templates.gemm.hopper import template as templates
from felix.templates.gemm.hopper.convolution import axes as channel_blocks
from felix.templates.gemm.problem import GemmProblem, Operand
from tests.support import share
from tests.support.templates import conv_problems, hopper_problems, hopper_stage
from tests.support.templates.conv_problems import Dimension

_WORDS = {1: np.uint8, 2: np.uint16, 4: np.uint32}


def _check(problem: GemmProblem, decisions: dict[str, int], folder: pathlib.Path) -> None:
    """Both operands of some tiles: of the first and last lines, steps and matrices."""
    template = hopper_problems.template(problem)
    design = template.design(decisions)
    copies = hopper_stage.Copies(template.generate(decisions).source, folder)
    rng = np.random.default_rng(0)
    for is_a in (True, False):
        operand, tile = (problem.a, design.a) if is_a else (problem.b, design.b)
        word = _WORDS[tile.element_bytes]
        count = conv_problems.elements_of(problem, operand)
        memory = rng.integers(1, np.iinfo(word).max, count, dtype=word)
        read = _packed(design, is_a, memory)
        lines, last_step = (problem.m, problem.n)[not is_a], design.grid.steps - 1
        last_line = (lines - 1) // tile.lines * tile.lines
        places = {(0, 0, 0), (0, last_step, problem.batch - 1), (last_line, last_step, 0)}
        places.add((last_line // tile.lines // 2 * tile.lines, last_step // 2, 0))
        for line, step, batch in places:
            whole = conv_problems.matrix_of(problem, operand, memory, batch)
            expected = _tile_of(problem, whole, line, step, tile)
            actual = _read_back(tile, is_a, copies, read, (line, step * tile.step, batch))
            inside = min(tile.lines, lines - line)
            np.testing.assert_array_equal(actual[:inside], expected[:inside])
            if operand.gather is None:
                assert (actual[inside:] == 0).all()


def _packed(design: designs.Design, is_a: bool, memory: np.ndarray) -> np.ndarray:
    """The memory that an operand is copied from: its own, or a packed copy."""
    if designs.sources(design.problem)[not is_a].is_aligned:
        return memory
    name = "pack_a" if is_a else "pack_b"
    (pack,) = (each for each in designs.packed(design.problem)[0] if each.name == name)
    original, copy = pack.source, pack.copy
    result = np.zeros(layout.packed_bytes(copy) // memory.itemsize, memory.dtype)
    outer, inner = np.ogrid[: copy.outer, : copy.inner]
    old, new = original.batches, copy.batches
    for matrix in range(new.matrices):
        far, near = divmod(matrix, old.inner_matrices)
        start = original.offset + far * old.outer_stride + near * old.stride
        target = far * new.outer_stride + near * new.stride
        lines = outer * original.outer_stride
        if original.outer_split is not None:
            extent, stride = original.outer_split
            lines = outer % extent * original.outer_stride + outer // extent * stride
        at = start + lines + inner * original.inner_stride
        result[target + outer * copy.outer_stride + inner] = memory[at]
    return result


def _tile_of(
    problem: GemmProblem, whole: np.ndarray, line: int, step: int, tile: layout.Tile
) -> np.ndarray:
    """[line][k] of a tile: taps with their channels, filled up with zeros."""
    blocks = channel_blocks.of(problem)
    assert blocks is not None
    _, taps, channels = whole.shape
    steps = -(-blocks.extent // tile.step) * tile.step
    filled = np.zeros((whole.shape[0] + tile.lines, steps), whole.dtype)
    of_tap = blocks.of_tap * blocks.block
    for tap in range(taps):
        filled[: whole.shape[0], tap * of_tap : tap * of_tap + channels] = whole[:, tap]
    k = step * tile.step
    return filled[line : line + tile.lines, k : k + tile.step]


def _read_back(
    tile: layout.Tile,
    is_a: bool,
    copies: hopper_stage.Copies,
    memory: np.ndarray,
    at: tuple[int, int, int],
) -> np.ndarray:
    """[line][k] as tensor cores find it after the copies of all sharers."""
    line, k, batch = at
    tensor_map = tile.tensor_map()
    instructions = []
    for part in range(tile.sharers):
        made = copies.share(is_a, line, k, batch, part)
        assert all(each.blocks == (0x5A if tile.sharers > 1 else None) for each in made)
        instructions += made
    stage = hopper_stage.stage(tile, tensor_map, instructions, memory)
    assert (stage >= 0).all()
    words = stage.astype(np.uint8).view(memory.dtype)
    per_instruction = 32 // tile.element_bytes
    result = np.empty((tile.lines, tile.step), memory.dtype)
    for first in range(0, tile.step, per_instruction):
        start = hopper_stage.k_offset(tile, first)
        for i in range(tile.lines):
            for j in range(per_instruction):
                place = hopper_stage.address(tile, tile.descriptor, start, i, j)
                result[i, first + j] = words[place // tile.element_bytes]
    return result


@pytest.mark.parametrize("seed", range(share.rounds(4, 24)))
def test_tiles_are_the_problems_operands(seed: int, tmp_path: pathlib.Path) -> None:
    rng = random.Random(seed)
    while True:
        problem = conv_problems.random_problem(rng)
        problem = problem.swapped if rng.random() < 0.4 else problem
        if templates.unsuited(problem) is None:
            break
    template = hopper_problems.template(problem)
    fixed = {"cluster_m": 2} if rng.random() < 0.3 and problem.m > 64 and problem.n > 16 else {}
    decisions = hopper_problems.legal(template, rng, **fixed)
    _check(problem, decisions, tmp_path)


_CASES: dict[str, tuple[dict[str, Any], dict[str, int]]] = {
    "first layer of 3 channels": (
        dict(dimensions=[Dimension(30, 7, 2, 1, 3)] * 2, channels=3, columns=64), {}
    ),
    "one group's channels end before a block": (
        dict(dimensions=[Dimension(9, 3, 1, 1, 1)] * 2, channels=24, columns=16, groups=3,
             images=2),
        {},
    ),
    "groups that need no dimension for images": (
        dict(dimensions=[Dimension(5, 3, 1, 1, 1)] * 3, channels=16, columns=16, groups=2), {}
    ),
    "channels first": (
        dict(dimensions=[Dimension(11, 3, 2, 1, 1)] * 2, channels=72, columns=40, images=2,
             channels_first=True),
        {},
    ),
    "channels first, one matrix of all images": (
        dict(dimensions=[Dimension(11, 3, 2, 1, 1)] * 2, channels=72, columns=40, images=2,
             channels_first=True, images_are_batch=False),
        {},
    ),
    "channels first throughout": (
        dict(dimensions=[Dimension(11, 3, 2, 1, 1), Dimension(13, 5, 1, 1, 2)], channels=20,
             columns=40, images=2, channels_first=True, weights="oihw", results_first=True),
        {},
    ),
    "int8 of few channels": (
        dict(dimensions=[Dimension(12, 3, 1, 1, 1)] * 2, channels=3, columns=40, dtype="int8",
             out="int32"),
        dict(block_k=128),
    ),
    "int8, whose weights are packed along k": (
        dict(dimensions=[Dimension(12, 3, 1, 1, 1)] * 2, channels=48, columns=40, dtype="int8",
             out="int32"),
        dict(block_k=128),
    ),
    "tf32": (
        dict(dimensions=[Dimension(40, 5, 3, 2, 4)], channels=20, columns=40, dtype="float32",
             out="float32", weights="ohwi"),
        dict(block_k=32),
    ),
    "float8, dense weights": (
        dict(dimensions=[Dimension(12, 3, 1, 2, 2)] * 2, channels=160, columns=40,
             dtype="float8_e4m3fn", weights="ohwi"),
        dict(block_k=256),
    ),
    "clusters that share pixels and weights": (
        dict(dimensions=[Dimension(16, 3, 1, 1, 1)] * 2, channels=64, columns=160),
        dict(cluster_m=2, cluster_n=2, block_m=64, block_n=80, block_k=64),
    ),
    "clusters whose shares are half a block of channels": (
        dict(dimensions=[Dimension(16, 3, 1, 1, 1)] * 2, channels=64, columns=64, images=3),
        dict(cluster_m=2, cluster_n=1, block_m=64, block_n=64, block_k=64),
    ),
    "padded outputs behind the input": (
        dict(dimensions=[Dimension(5, 1, 1, 1, 2), Dimension(6, 2, 2, 3, 3)], channels=64,
             columns=32, images=3),
        {},
    ),
}  # fmt: skip


@pytest.mark.parametrize(("name", "swapped"), share.of(share.crossed(_CASES, [False, True]), 5))
def test_tiles_of(name: str, swapped: bool, tmp_path: pathlib.Path) -> None:
    fields, fixed = _CASES[name]
    problem = conv_problems.problem(**fields)
    if swapped:
        problem = problem.swapped
        fixed = {k: v for k, v in fixed.items() if k in ("block_k",)}
    assert templates.unsuited(problem) is None
    template = hopper_problems.template(problem)
    decisions = hopper_problems.legal(template, random.Random(0), **fixed)
    _check(problem, decisions, tmp_path)


def test_two_batch_axes_and_an_offset(tmp_path: pathlib.Path) -> None:
    """Groups and images as batch axes of a problem that begins inside its tensors."""
    plain = conv_problems.problem([Dimension(9, 3, 2, 1, 1)] * 2, 24, 16, groups=2)
    image = plain.a.gather.image_stride  # type: ignore[union-attr]
    a = dataclasses.replace(plain.a, outer_stride=image, offset=8)
    b: Operand = dataclasses.replace(plain.b, offset=16)
    problem = dataclasses.replace(plain, a=a, b=b, batch=6, inner_batch=2)
    assert templates.unsuited(problem) is None
    template = hopper_problems.template(problem)
    _check(problem, hopper_problems.legal(template, random.Random(1)), tmp_path)
