"""What the compiler says of kernels, and corrections of predictions by it."""

from __future__ import annotations

import shutil
import struct
from typing import Any

import numpy as np
import pytest

from benchmarks import built_kernels
from felix.measure.cuda.building import nvrtc


def _rows(error_of_spills: float, n: int = 20) -> list[dict[str, Any]]:
    """Workloads of ten schedules of which some spill, which costs that many nats."""
    rng = np.random.default_rng(0)
    rows = []
    for number in range(n):
        predicted, spills = rng.normal(size=10), rng.integers(0, 2, 10)
        latency = predicted + error_of_spills * spills + rng.normal(scale=0.01, size=10)
        kernels = [(int(rng.integers(16, 200)), 64 * int(spill), 500) for spill in spills]
        rows.append(
            {
                "name": str(number),
                "operator": "gemm",
                "predicted": predicted.tolist(),
                "ln_latency": latency.tolist(),
                "kernels": kernels,
            }
        )
    return rows


def test_errors_that_kernels_explain_are_corrected() -> None:
    scores = {row["correction"]: row for row in built_kernels.scores(_rows(1.0))}
    before, control = scores["as predicted"], scores["control: trees without"]
    assert before["centred_rmse"] > 0.3 and control["centred_rmse"] > 0.3
    assert before["top1"] < 0.9
    for name in ("least squares", "trees"):
        assert scores[name]["centred_rmse"] < 0.1 and scores[name]["top1"] > 0.95


def test_where_they_explain_nothing_little_changes() -> None:
    scores = {row["correction"]: row for row in built_kernels.scores(_rows(0.0))}
    for row in scores.values():
        assert row["centred_rmse"] < 0.02 and row["top1"] > 0.98


def test_a_correction_is_not_learnt_from_the_workload_itself() -> None:
    rows = _rows(0.0)
    rows[0]["ln_latency"] = (-np.array(rows[0]["ln_latency"])).tolist()
    corrected = built_kernels._corrected(rows, built_kernels._least_squares)
    assert np.corrcoef(corrected[0], rows[0]["predicted"])[0, 1] > 0.99


def test_code_is_what_sections_of_code_have() -> None:
    names = b"\0.text.main\0.data\0.text.other\0"
    offsets = [names.index(each) for each in (b".text.main", b".data", b".text.other")]
    sizes = [64, 1000, 32]
    sections = [(0, 0, 0, 0, 64, len(names))]
    sections += [(at, 0, 0, 0, 0, size) for at, size in zip(offsets, sizes, strict=True)]
    table = b"".join(struct.pack("<IIQQQQ24x", *each) for each in sections)
    header = bytearray(64)
    struct.pack_into("<Q", header, 0x28, 64 + len(names))
    struct.pack_into("<HHH", header, 0x3A, 64, len(sections), 0)
    assert built_kernels.code_bytes(bytes(header) + names + table) == 96


def test_the_report_of_the_assembler_is_read() -> None:
    said = """ptxas info    : Compiling entry function 'f' for 'sm_90'
ptxas info    : Function properties for f
    8 bytes stack frame, 12 bytes spill stores, 20 bytes spill loads
ptxas info    : Used 40 registers, used 1 barriers, 8 bytes cumulative stack size
ptxas info    : Function properties for g
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 96 registers, used 0 barriers
"""
    assert built_kernels.of_report(said, 640) == built_kernels.Kernels(96, 32, 40)


# PyPI's packages have NVRTC and no assembler: what it prints is read above without one.
@pytest.mark.skipif(shutil.which("ptxas") is None, reason="needs ptxas of a CUDA toolkit")
def test_the_assembler_says_what_a_kernel_takes() -> None:
    body = 'extern "C" __global__ void f(float *x) { x[threadIdx.x] = x[threadIdx.x] * %s; }'
    plain = built_kernels.of_ptx(nvrtc.compile_ptx(body % "2.0f", "sm_90", headers=False))
    assert 0 < plain.registers < 32 and plain.spill_bytes == 0
    powers = "powf(x[1], x[2]) / x[3] + powf(x[4], x[5]) / x[6]"
    longer = built_kernels.of_ptx(nvrtc.compile_ptx(body % powers, "sm_90", headers=False))
    assert longer.instructions > plain.instructions > 0
