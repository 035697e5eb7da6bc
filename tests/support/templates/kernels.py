"""What the kernels of a template are checked for: text run on the CPU, counts, registers."""

from __future__ import annotations

import ctypes
import dataclasses
import pathlib
import random
from collections.abc import Callable, Mapping

import numpy as np

from felix import errors, target
from felix.measure.checking import reference
from felix.measure.cuda.building import nvrtc
from felix.templates.gemm.ampere import template
from felix.templates.gemm.problem import GemmProblem
from felix.templates.generated import GeneratedProgram
from felix.templates.template import Template
from tests.support.templates import cubin, gemm_problems, host_gpu, template_rows

A100 = target.hardware(target.parse("cuda -arch sm_80"))


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
    build: Callable[..., ctypes.CDLL] = host_gpu.build,
    tolerance: float = 1e-2,
) -> host_gpu.Counts:
    """The text computes what numpy does, with copies that arrive late or at once.

    Args:
        arrays: fresh parameters, with 64 elements of poison behind the output.
        expected: the output, where it is not computed from the problem.

    Returns:
        Counts of one run.
    """
    library = build(generated, p, folder)
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
