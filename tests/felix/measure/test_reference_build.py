"""What a builder makes of a task: a description without a program, and a reference."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import numpy as np
import pytest
import tvm

from felix import workloads
from felix.measure import build, description, payload, task_program
from felix.measure.checking import reference
from felix.measure.cpu import preparation
from felix.measure.cuda import reference as cuda_reference
from felix.measure.cuda.building import nvrtc
from felix.measure.description import Description
from felix.task import Task

needs_nvrtc = pytest.mark.skipif(not nvrtc.available(), reason="needs NVRTC")


def _made(task: Task, folder: pathlib.Path, **changed: Any) -> tuple[Description, str]:
    text = payload.of(task.mod, task.target)
    options = {"link": "auto", "seed": 3, "check": True, **changed}
    reply = build.handle_reference(text, str(folder / "made"), **options)
    assert json.dumps(reply)
    return Description.from_json(reply["description"]), reply["library"]


def test_a_description_has_what_the_program_says(tmp_path: pathlib.Path) -> None:
    task = workloads.parse("gemm:16,16,64,dtype=float16", target="h200")
    described, library = _made(task, tmp_path, check=False)
    assert library == "" and list(tmp_path.iterdir()) == []
    assert (described.device, described.target, described.seed) == ("cuda", "sm_90", 3)
    assert described.arguments == task_program.arguments(task.mod)
    assert described.tolerance == cuda_reference.tolerance(task.mod)


@pytest.mark.parametrize("text", ["softmax:8x64", "gemm:16,16,16,dtype=float16"])
def test_a_library_computes_what_the_program_does(text: str, tmp_path: pathlib.Path) -> None:
    task = workloads.parse(text, target="llvm -num-cores 2")
    described, library = _made(task, tmp_path)
    assert described.device == "cpu" and pathlib.Path(library).suffix in (".so", ".ll")
    main = tvm.runtime.load_module(library)["main"]
    run = preparation.run_of(main, described.arguments)
    wanted = task_program.on_cpu(task.mod, task.target, described.arguments)(3, False)
    for index, output in run(3, False).items():
        np.testing.assert_array_equal(output, wanted[index])


@needs_nvrtc
def test_a_gpu_gets_plan_and_cubin(tmp_path: pathlib.Path) -> None:
    described, library = _made(workloads.gemm(16, 16, 16, target="h200"), tmp_path)
    plan, cubin = description.read_program(library)
    assert library.endswith(".cubin") and cubin.startswith(b"\x7fELF")
    assert plan.n_params == len(described.arguments) == 3


def test_what_no_thread_can_compute_is_computed_by_the_builder(tmp_path: pathlib.Path) -> None:
    """A sum to one value, whose size is that of several draws."""
    task = workloads.parse("reduce:1000,axes=0,kind=sum", target="h200")
    described, library = _made(task, tmp_path)
    checked = reference.read_expected(library, described.arguments)
    terms = reference.inputs(described.arguments, 3, positive=False)[0]
    assert library.endswith(".outputs")
    assert checked.outputs[1] == pytest.approx(terms.sum(dtype=np.float64), rel=1e-3, abs=1e-2)
    assert 15 < checked.rms[1] < 60


def test_outputs_that_are_too_large_to_be_sent_are_refused(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "MAX_OUTPUT_BYTES", 3)
    with pytest.raises(ValueError, match="go to a run worker"):
        _made(workloads.parse("reduce:1000,axes=0,kind=sum", target="h200"), tmp_path)
