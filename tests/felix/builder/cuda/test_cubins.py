"""Cubins, which need no GPU: what NVRTC makes of candidates, and of TVM's own source of them."""

from __future__ import annotations

import pathlib

import numpy as np
import pytest
import tvm

import felix
from felix import errors
from felix.builder import build as measure_build
from felix.builder import payload
from felix.builder.cuda import build as cuda_build
from felix.builder.cuda import cubins as cuda_source
from felix.builder.cuda import reference as cuda_reference
from felix.runner import description
from felix.runner.cuda import nvrtc
from tests.support import legal_rows, share

#: Small candidates, whose accumulators become variables.
TARGET = "cuda -arch sm_90 -max_shared_memory_per_block 49152"


def _candidate(text: str, sketch: int, row: int) -> tuple[tvm.IRModule, tvm.target.Target]:
    """The `row`th of four schedules that a fixed seed draws from a sketch."""
    task = felix.workloads.parse(text, target=TARGET)
    chosen = felix.trace_sketches(task)[sketch]
    return chosen.schedule(chosen.sample(4, seed=0)[row]).mod, task.target


def _cubin(source: cuda_source.Source) -> bytes:
    return nvrtc.compile_cubin(source.text, "sm_90", headers=source.headers)


@pytest.mark.parametrize(
    ("text", "sketch", "row"),
    share.of(
        [
            ("softmax:12x64x197", 1, 0),
            ("softmax:12x64x197", 3, 1),
            ("gemm:16,64,64,epilogue=bias+relu", 0, 3),
            ("gemm:64,64,96,epilogue=bias+relu", 1, 0),
            ("layer_norm:64x256", 2, 0),
            ("layer_norm:64x256", 3, 1),
            ("conv2d:1,14,14,16,16,3,padding=1", 1, 2),
            ("conv2d:1,14,14,32,32,3,padding=1", 0, 2),
        ],
        4,
    ),
)
def test_what_is_measured_is_what_tvm_would_build(
    text: str, sketch: int, row: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither variables for accumulators nor the passes left out change the cubin.

    With variables, registers have other numbers in a part of all candidates; in none of these.
    """
    mod, target = _candidate(text, sketch, row)
    variables = cuda_build.lower(mod, target).source
    monkeypatch.setattr(cuda_source, "scalars", str)
    arrays = cuda_build.lower(mod, target).source
    monkeypatch.setattr(cuda_build, "_PASSES", {"config": cuda_build.ASYNC_COPIES})
    all_passes = cuda_build.lower(mod, target).source
    assert "_ptr_e0" in variables.text and "_ptr_e0" not in arrays.text
    assert "cse_v" in all_passes.text and "cse_v" not in arrays.text
    assert _cubin(all_passes) == _cubin(arrays) == _cubin(variables)


def test_a_software_pipeline_copies_asynchronously(monkeypatch: pytest.MonkeyPatch) -> None:
    def copies(source: cuda_source.Source) -> int:
        return source.text.count("  ptx_cp_async_")

    mod, target = _candidate("gemm:64,64,64", 1, 1)
    assert "software_pipeline" in mod.script()
    source = cuda_build.lower(mod, target).source
    assert copies(source) and _cubin(source)
    monkeypatch.setattr(cuda_build, "_PASSES", {})
    assert not copies(cuda_build.lower(mod, target).source)
    monkeypatch.undo()
    plain, _ = _candidate("gemm:64,64,64", 0, 1)
    assert not copies(cuda_build.lower(plain, target).source)


@pytest.mark.parametrize("text", ["gemm:64,64,64,epilogue=bias", "gemm:64,64,64,dtype=float16"])
def test_tvm_is_given_the_cubin_that_is_measured(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a GPU TVM keeps the source and asks no compiler, so here a fake of it does."""
    mod, target = _candidate(text, 0, 1)
    tvm_build = tvm.tirx.build
    cubins: list[bytes] = []

    def build(mod: tvm.IRModule, target: tvm.target.Target) -> tvm.runtime.Module:
        built = tvm_build(mod, target)
        compiler = tvm.get_global_func("tvm_callback_cuda_compile")
        cubins.append(bytes(compiler(built.imports[0].inspect_source())))
        return built

    def tvm_compiler(code: str) -> bytes:
        return b"TVM's own"

    before = tvm.get_global_func("tvm_callback_cuda_compile", allow_missing=True)
    tvm.register_global_func("tvm_callback_cuda_compile", tvm_compiler, override=True)
    monkeypatch.setattr(tvm.tirx, "build", build)
    module = measure_build.module(mod, target)
    assert "__global__" in module.imports[0].inspect_source()
    assert cubins == [_cubin(cuda_build.lower(mod, target).source)]
    assert bytes(tvm.get_global_func("tvm_callback_cuda_compile")("")) == b"TVM's own"
    if before is not None:
        tvm.register_global_func("tvm_callback_cuda_compile", before, override=True)


def test_a_module_needs_nvrtc(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise errors.MeasureError("NVRTC was not found")

    monkeypatch.setattr(nvrtc, "load", missing)
    mod, target = _candidate("elementwise:64x64", 0, 0)
    with pytest.raises(errors.MeasureError, match="NVRTC was not found"):
        measure_build.module(mod, target)


@pytest.mark.parametrize(
    "types", share.of(["float16", "float8_e5m2", "float8_e4m3fn", "bfloat16,out_dtype=float32"], 2)
)
def test_programs_of_narrow_floats_are_built(types: str, tmp_path: pathlib.Path) -> None:
    mod, target = _candidate(f"gemm:64,64,64,epilogue=bias+gelu,dtype={types}", 1, 0)
    reply = cuda_build.handle(
        payload.of(mod, target), str(tmp_path / "candidate"), max_source_bytes=10**6
    )
    plan, cubin = description.read_program(reply["library"])
    assert cubin.startswith(b"\x7fELF")
    assert all(launch.kernel.encode() in cubin for launch in plan.launches)


@pytest.mark.parametrize(
    "text",
    [
        "conv2d:1,5,5,4,8,3,padding=1,dtype=float8_e4m3fn,epilogue=bias",
        "gemm:9,7,5,dtype=int8",
        "conv2d:1,5,5,4,8,3,padding=1,dtype=float8_e5m2,out_dtype=float32",
    ],
)
def test_references_of_narrow_types_are_built(text: str) -> None:
    task = felix.workloads.parse(text, target=TARGET)
    made = cuda_reference.program(task.mod, task.target)
    assert made is not None and made[1].startswith(b"\x7fELF")


@pytest.mark.parametrize("types", ["bfloat16", "int8", "float8_e4m3fn"])
def test_vectors_of_narrow_types_are_those_that_can_be_written(types: str) -> None:
    """TVM's CUDA has neither vectors of three of them nor gathers of eight."""
    task = felix.workloads.parse(f"gemm:48,48,48,dtype={types}", target=TARGET)
    sketch, *_ = felix.trace_sketches(task)
    lanes = [i for i, v in enumerate(sketch.variables) if v.kind == "choice" and 3 in v.domain]
    rows = legal_rows.draw(sketch, 96, seed=3)
    long = rows[np.isin(rows[:, lanes], (3, 8, 16)).any(axis=1)]
    assert len(long) >= 8
    for row in long[:: max(1, len(long) // 12)]:
        text = cuda_build.lower(sketch.schedule(row).mod, task.target).source.text
        assert "make_longlong4(" not in text.partition("__global__")[2]


def test_headers_that_are_missing_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    mod, target = _candidate("elementwise:64x64,dtype=float16", 0, 0)
    source = cuda_build.lower(mod, target).source
    assert source.headers
    monkeypatch.setattr(nvrtc, "include_paths", tuple)
    with pytest.raises(errors.MeasureError, match=r"pip install 'nvidia-cuda-runtime==\d+\.\d+"):
        _cubin(source)
