"""Problems of GEMM templates, drawn from a seed, and legal decisions for them."""

from __future__ import annotations

import dataclasses
import functools
import random
from collections.abc import Mapping
from typing import Any

from felix import target
from felix.templates.gemm.hopper.decisions import Decisions
from felix.templates.gemm.hopper.template import HopperGemm, constraints
from felix.templates.gemm.problem import Epilogue, GemmProblem, Operand, Output, Read, Strides
from tests.support.templates import kernels

_ACCUMULATORS = {"int8": "int32"}
_EPILOGUES = (
    ("x", ()),
    ("x + read0", ((0, 0, 1),)),
    ("fmaxf(x * read0, 0.0f) + read1", ((0, 1, 0), (1, 1, 1))),
)
#: Decisions that every problem of whole tiles takes.
PLAIN = kernels.decisions(
    "block_m=128 block_n=128 block_k=64 stages=4 consumers=2 tiles_at_once=1 blocks_per_sm=1"
    " cluster_m=1 cluster_n=1 cluster_k=1 split_k=1 group_m=1 persistent=1 tma_store=1"
)


@functools.cache
def hardware() -> target.Hardware:
    """An H200."""
    return target.hardware("h200")


def strides(
    batch: int, rows: int, columns: int, transposed: bool = False, pad: int = 0
) -> Strides:
    """Of a dense tensor [batch][rows][columns] or [batch][columns][rows]; `pad` elements a row."""
    if transposed:
        return (columns * (rows + pad) if batch > 1 else 0, 1, rows + pad)
    return (rows * (columns + pad) if batch > 1 else 0, columns + pad, 1)


def problem(
    m: int,
    n: int,
    k: int,
    *,
    batch: int = 1,
    dtype: str = "bfloat16",
    out: str = "bfloat16",
    a_transposed: bool = False,
    b_transposed: bool = True,
    c_transposed: bool = False,
    b_shared: bool = False,
    pad: int = 0,
    epilogue: int = 0,
) -> GemmProblem:
    """A product whose B is [n][k] where it is transposed, as in a linear layer."""
    expression, axes = _EPILOGUES[epilogue]
    reads = tuple(
        Read(
            f"read{i}",
            2 + i,
            "bfloat16" if i == 0 else "float32",
            _read_strides(used, batch, m, n),
        )
        for i, used in enumerate(axes)
    )
    b = strides(batch, n, k, not b_transposed, pad)
    return GemmProblem(
        batch,
        m,
        n,
        k,
        Operand(0, dtype, strides(batch, m, k, a_transposed, pad)),
        Operand(1, dtype, (0, *b[1:]) if b_shared else b),
        _ACCUMULATORS.get(dtype, "float32"),
        Output(2 + len(reads), out, strides(batch, m, n, c_transposed)),
        Epilogue(expression, reads),
        3 + len(reads),
    )


def _read_strides(used: tuple[int, ...], batch: int, m: int, n: int) -> Strides:
    """Of a read that is broadcast along the axes that it does not use."""
    row = n if used[2] else 1
    return (used[0] * (m * n if batch > 1 else 0), used[1] * row, used[2])


def random_problem(rng: random.Random) -> GemmProblem:
    """Of awkward extents, 16-bit operands in any order."""
    extents = [rng.choice((1, 8, 33, 64, 100, 150, 256)) for _ in range(3)]
    return problem(
        *extents,
        batch=rng.choice((1, 3)),
        dtype=rng.choice(("bfloat16", "float16")),
        out=rng.choice(("bfloat16", "float32")),
        a_transposed=rng.random() < 0.5,
        b_transposed=rng.random() < 0.5,
        c_transposed=rng.random() < 0.3,
        b_shared=rng.random() < 0.3,
        pad=rng.choice((0, 3, 8)),
        epilogue=rng.randrange(3),
    )


def template(problem: GemmProblem) -> HopperGemm:
    """The template of a problem, on an H200."""
    return HopperGemm(problem, hardware())


def drawn(seed: int) -> tuple[HopperGemm, dict[str, int]]:
    """That of a random problem, and legal decisions."""
    rng = random.Random(seed)
    made = template(random_problem(rng))
    return made, legal(made, rng)


def sample(template: HopperGemm, rng: random.Random) -> dict[str, int]:
    """Decisions of the domains, legal or not, with clusters that add sums as often as others."""
    values = {p.name: rng.choice(p.domain) for p in template.parameters}
    if rng.random() < 0.6:
        values["cluster_k"] = 1
    else:
        alone = ("cluster_m", "cluster_n", "split_k", "persistent", "tma_store", "tiles_at_once")
        values.update(dict.fromkeys(alone, 1))
    return values


def is_legal(template: HopperGemm, values: Mapping[str, Any]) -> bool:
    """Whether the template's constraints hold, evaluated on integers."""
    pairs = constraints(template.problem, Decisions.of(values), template.hardware)
    return all(value <= 0 for _, value in pairs)


def legal(template: HopperGemm, rng: random.Random, **fixed: int) -> dict[str, int]:
    """Legal decisions with some of them fixed."""
    for _ in range(100_000):
        values = sample(template, rng) | fixed
        if is_legal(template, values):
            return values
    raise AssertionError(f"no legal decisions of {template.problem} with {fixed}")


def with_operands(problem: GemmProblem, dtype: str) -> GemmProblem:
    """The problem with operands of another dtype."""
    a, b = (dataclasses.replace(operand, dtype=dtype) for operand in (problem.a, problem.b))
    return dataclasses.replace(problem, a=a, b=b)
