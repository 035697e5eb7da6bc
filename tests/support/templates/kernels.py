"""What the kernels of a template are checked for: text run on the CPU, counts, registers."""

from __future__ import annotations

import dataclasses
import pathlib
import random
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pytest

from felix import errors, target
from felix.launch_plan import Launch
from felix.runner.checking import reference
from felix.runner.cuda import nvrtc
from felix.templates import spec
from felix.templates.gemm.ampere import template
from felix.templates.gemm.problem import GemmProblem
from felix.templates.generated import GeneratedProgram
from felix.templates.template import Template
from tests.support.templates import cubin, gemm_problems, host_gpu, template_rows


def machine(arch: str) -> target.Hardware:
    """A GPU of an architecture like "sm_80"."""
    return target.hardware(target.parse(f"cuda -arch {arch}"))


A100 = machine("sm_80")


def decisions(text: str, of: Mapping[str, int] | None = None) -> dict[str, int]:
    """Decisions from "name=number name=number", in place of those of others."""
    pairs = (word.split("=") for word in text.split())
    return {**(of or {}), **{name: int(number) for name, number in pairs}}


#: Of the mma.sync kernels: what the CPU runs quickly, and what a GPU does.
SMALL = decisions(
    "warp_m=16 warp_n=16 warps_m=1 warps_n=1 block_k=32 stages=2 split_k=1 group_m=1"
    " blocks_per_sm=1"
)
BIG = decisions("warp_m=64 warp_n=32 warps_m=2 warps_n=4 stages=4 group_m=8", SMALL)


def features(p: GemmProblem, values: Mapping[str, int]) -> dict[str, dict[str, float]]:
    """Of the mma.sync kernels at these decisions, by kernel and name."""
    return template_rows.rows_of(template.AmpereGemm(p, A100, "sm_80"), values)


def legal(
    made: Template, rng: random.Random, suits: Callable[[dict[str, int]], bool] = lambda _: True
) -> dict[str, int]:
    """Random decisions that the template takes."""
    while True:
        values = {q.name: rng.choice(q.domain) for q in made.parameters}
        if not suits(values):
            continue
        try:
            made.generate(values)
        except errors.DecisionError:
            continue
        return values


def of_few_threads(values: Mapping[str, int]) -> bool:
    """Whether the CPU runs the mma.sync kernels quickly."""
    threads, tile = values["warps_m"] * values["warps_n"], values["warp_m"] * values["warp_n"]
    return threads <= 4 and tile <= 2048


def check_text(
    p: GemmProblem,
    generated: GeneratedProgram,
    folder: pathlib.Path,
    *,
    arrays: Callable[[], list[gemm_problems.Array]] | None = None,
    expected: gemm_problems.Array | None = None,
    kind: str = "mma",
    tolerance: float = 1e-2,
) -> host_gpu.Counts:
    """The text computes what numpy does, with copies that arrive late or at once.

    Args:
        arrays: fresh parameters, with 64 elements of poison behind the output.
        expected: the output, where it is not computed from the problem.
        kind: as `host_gpu.build` has it.

    Returns:
        Counts of one run.
    """
    library = host_gpu.build(generated, p, folder, kind)
    number = p.output.param
    (epilogue,) = gemm_problems.compile_epilogues([p], folder) if expected is None else (None,)
    for late in (True, False):
        tensors = (arrays or (lambda: gemm_problems.arrays(p)))()
        output = tensors[number]
        before = host_gpu.counts(library)
        assert host_gpu.run(library, generated, tensors, late=late) == 0
        actual, wanted = output[:-64], expected
        if epilogue is not None:
            whole = [*tensors[:number], actual, *tensors[number + 1 :]]
            _, wanted = gemm_problems.evaluate(p, whole, epilogue)
        assert wanted is not None
        assert reference.mismatch(actual.reshape(wanted.shape), wanted, tolerance) is None
        assert (output[-64:].view(np.uint8) == 0x5A).all()
    after = dataclasses.astuple(host_gpu.counts(library))
    pairs = zip(after, dataclasses.astuple(before), strict=True)
    return host_gpu.Counts(*(a - b for a, b in pairs))


def poisoned(size: int, dtype: np.dtype) -> gemm_problems.Array:
    """An output of poison, with 64 elements behind it."""
    output = np.zeros(size + 64, dtype)
    output.view(np.uint8).fill(0x5A)
    return output


def check_counts(done: host_gpu.Counts, row: Mapping[str, float]) -> None:
    """The features of a kernel of tensor cores are what a run did."""
    assert row["tensor_instructions"] == done.mma
    assert row["copied_bytes"] == done.copied_bytes
    assert row["shared_traffic"] == done.copied_bytes + done.loaded_bytes
    assert row["copy_instructions"] == done.copies


def check_compiles(made: Template, values: Mapping[str, int], registers: float) -> None:
    """The kernels spill nothing, and the first has about as many registers as are estimated."""
    generated = made.generate(values)
    binary = nvrtc.compile_cubin(generated.source, generated.arch)
    cubin.check(binary, generated.plan.launches)
    kernel = "gemv" if made.name == "gemv" else "gemm"
    assert cubin.registers(binary, kernel) <= 1.25 * registers


#: (blocks, threads of a block, its shared bytes) of the first launch of decisions that fit.
Fitting = Callable[[dict[str, int]], tuple[int, int, int] | None]


def check_limits(made: Template, n: int, fitting: Fitting) -> None:
    """Of n random decisions those are taken that fit, and what is launched is as they say."""
    rng = random.Random(0)
    every = [{q.name: rng.choice(q.domain) for q in made.parameters} for _ in range(n)]
    launches = [fitting(values) for values in every]
    assert template_rows.hold(made, every) == [launch is not None for launch in launches]
    assert 20 < n - launches.count(None) < n
    for values, launch in zip(every, launches, strict=True):
        if launch is None:
            with pytest.raises(errors.DecisionError):
                made.generate(values)
            continue
        first, (blocks, threads, shared) = made.generate(values).plan.launches[0], launch
        assert first.extents == (blocks, 1, 1, threads, 1, 1)
        assert first.shared_bytes == shared
    name = made.parameters[0].name
    with pytest.raises(errors.DecisionError, match=name):
        made.generate(every[0] | {name: 999})


#: Features by kernel and name.
Rows = Mapping[str, Mapping[str, float]]


def check_split_features(
    whole: Rows, parted: Rows, launches: Sequence[Launch], element_bytes: int
) -> None:
    """Those of a product of 300 x 200 x 1000 with a bias and a residual, whole and in 4 parts."""
    assert set(whole["reduce"].values()) == {0.0}
    for launch, row in zip(launches, parted.values(), strict=True):
        assert row["grid_blocks"] == launch.extents[0]
        assert row["block_threads"] == launch.extents[3]
    assert parted["gemm"]["shared_bytes"] == launches[0].shared_bytes
    # one read of the bias and of the residual, which partial sums do without
    elements = 300 * 1000 + 200 * 1000 + 2 * 300 * 200 + 200
    assert whole["gemm"]["dram_bytes"] == element_bytes * elements
    assert parted["gemm"]["stored_bytes"] == 4 * 4 * 300 * 200
    for row in (whole["gemm"], *parted.values()):
        assert set(row) <= set(spec.NAMES)
        assert all(value >= 0 for value in row.values())
        assert 1 < row["analytic_us"] < 1000
