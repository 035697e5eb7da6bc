"""Bundles of narrow element types: run.py on a CPU, and what a GPU's bundle has of them."""

from __future__ import annotations

import dataclasses
import json
import pathlib
import random
import sys
from typing import Any

import pytest

from benchmarks.support import fuzzing
from felix import target, workloads
from felix.artifact import export, run_script
from felix.builder import task_program
from felix.runner.checking import reference
from felix.task import Task
from tests.support import bundles, run_py, share


def _export(task: Task, best: Any, folder: pathlib.Path) -> dict[str, Any]:
    export.export(bundles.Result(task, best), folder)
    manifest: dict[str, Any] = json.loads((folder / "manifest.json").read_text())
    return manifest


@pytest.mark.parametrize(
    "text, output",
    share.of(
        [
            ("gemm:24,16,32,dtype=bfloat16,epilogue=bias+gelu", "bfloat16"),
            ("gemm:24,16,32,dtype=bfloat16,out_dtype=float32", "float32"),
            ("gemm:24,16,32,dtype=float16,batch=2", "float16"),
            ("gemm:24,16,32,dtype=bfloat16,out_dtype=float16", "float16"),
            ("gemm:24,16,32,dtype=int8,epilogue=bias+relu", "int32"),
            ("gemm:24,16,32,dtype=int8,epilogue=scale+bias", "bfloat16"),
            ("gemm:24,16,32,dtype=int8,epilogue=scalar_scale+gelu,out_dtype=float16", "float16"),
            (
                "conv2d:1,6,6,8,8,3,padding=1,dtype=int8,epilogue=scale,out_dtype=float32",
                "float32",
            ),
        ],
        3,
    ),
)
def test_run_py_checks_narrow_types_on_a_cpu(
    text: str, output: str, tmp_path: pathlib.Path
) -> None:
    task = workloads.parse(text, "llvm -num-cores 1")
    manifest = _export(task, bundles.unscheduled(task), tmp_path)
    assert manifest["arguments"][-1]["dtype"] == output
    done = run_py.run(tmp_path, "--json", "--repeats", "2")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["tolerance"] == manifest["tolerance"]
    checked = report["checked_against"]
    assert ("numpy" in checked) is (tmp_path / "oracle.py").exists() is text.startswith("gemm")


#: Workloads of a GPU, and the types of their arguments.
ON_A_GPU = [
    ("gemm:64,48,64,transpose_b=true,dtype=bfloat16,epilogue=bias", ["bfloat16"] * 4),
    ("gemm:64,48,64,dtype=float8_e4m3fn", [*["float8_e4m3fn"] * 2, "bfloat16"]),
    (
        "gemm:64,48,64,dtype=float8_e5m2,epilogue=scalar_scale+bias,out_dtype=float16",
        [*["float8_e5m2"] * 2, "float32", "float16", "float16"],
    ),
    (
        "gemm:64,48,64,dtype=int8,epilogue=scale,out_dtype=float32",
        ["int8", "int8", "float32", "float32"],
    ),
]


def _generated(text: str, folder: pathlib.Path) -> tuple[Task, dict[str, Any]]:
    """A task, and the manifest of the bundle of a generated kernel."""
    task = workloads.parse(text, "h200")
    made = fuzzing.suited(task, target.hardware(task.target))[0][0]
    ((decisions, program),) = fuzzing.legal(made, 1, random.Random(0))
    values = tuple(decisions.values())
    best = bundles.Best(task.mod, decisions=values, variant=made.name, generated=program)
    return task, _export(task, best, folder)


@pytest.mark.parametrize("text, types_of_arguments", ON_A_GPU)
def test_a_gpu_s_bundle_has_kernels_and_references_of_narrow_types(
    text: str, types_of_arguments: list[str], tmp_path: pathlib.Path
) -> None:
    task, manifest = _generated(text, tmp_path)
    assert (manifest["kind"], manifest["library"]) == ("generated", "kernel.cubin")
    assert [argument["dtype"] for argument in manifest["arguments"]] == types_of_arguments
    assert (tmp_path / "kernel.cubin").stat().st_size > 0
    assert (tmp_path / "reference.cubin").stat().st_size > 0
    assert manifest["tolerance"] > 0
    read = Task.from_json((tmp_path / "workload.json").read_text(), "h200", trusted=True)
    assert read.program_key == task.program_key
    args = task_program.arguments(task.mod)
    inputs = reference.inputs(args, 0, positive=False)[:-1]
    (expected,) = task_program.on_cpu(task.mod, task.target, args)(0, False).values()
    named = {arg.name: array for arg, array in zip(args, inputs, strict=False)}
    computed = run_py.module(tmp_path / "oracle.py").compute(named)[args[-1].name]
    assert computed.dtype == expected.dtype
    limit = 2 * task_program.tolerance(task.mod)
    assert reference.mismatch(computed, expected, limit) is None


def test_narrow_floats_without_ml_dtypes_say_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    scale = reference.Argument("s", "float16", (1,), is_input=True, is_output=False)
    narrow = dataclasses.replace(scale, dtype="float8_e4m3fn")
    described = [dataclasses.asdict(each) for each in (scale, narrow)]
    assert len(run_script._arguments({"arguments": described[:1]})) == 1
    with pytest.raises(run_script.Failure, match="pip install ml_dtypes"):
        run_script._arguments({"arguments": described})


def test_what_a_bundle_says_is_of_the_task() -> None:
    """Arguments of a bundle have the ranges that keep float16 from overflowing."""
    for out, is_full in (("float16", False), ("float32", True)):
        task = workloads.parse(f"gemm:8,8,8,dtype=int8,epilogue=scale,out_dtype={out}", "h200")
        first, *_ = map(dataclasses.asdict, task_program.arguments(task.mod))
        assert first["is_full_range"] is is_full


@pytest.mark.gpu
@pytest.mark.parametrize("text", [text for text, _ in ON_A_GPU])
def test_run_py_checks_generated_kernels_of_narrow_types(
    text: str, tmp_path: pathlib.Path
) -> None:
    _, manifest = _generated(text, tmp_path)
    done = run_py.run(tmp_path, "--json", "--repeats", "2")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["tolerance"] == manifest["tolerance"]
    assert report["checked_against"]
