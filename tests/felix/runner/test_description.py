"""Descriptions and references of tasks: what is written is read, and nothing else is."""

from __future__ import annotations

import dataclasses
import json
import pathlib
from typing import Any

import numpy as np
import pytest
import tvm

from felix import workloads
from felix.builder import build, payload, task_program
from felix.builder.cuda import reference as cuda_reference
from felix.runner import description
from felix.runner.checking import reference
from felix.runner.checking.reference import Argument
from felix.runner.cpu import runner as cpu_runner
from felix.runner.description import Description
from felix.task import Task

TASK = Description(
    device="cuda",
    target="sm_90",
    arguments=(
        Argument("x", "int32", (3, 4), is_input=True, is_output=False, index_bound=7),
        Argument("y", "float8_e4m3fn", (), is_input=False, is_output=True),
        Argument("z", "int8", (2,), is_input=True, is_output=True, is_full_range=True),
        Argument("d", "int32", (3, 4), is_input=True, is_output=False, is_divisor=True),
    ),
    tolerance=1e-3,
    seed=5,
)


def test_a_description_is_read_as_it_was_written() -> None:
    text = TASK.to_json()
    assert Description.from_json(text) == TASK
    assert "\n" not in text and json.loads(text)["version"] == description.VERSION


@pytest.mark.parametrize("dtype", ["bool", "uint64", "float64", "bfloat16", "float8_e5m2"])
def test_dtypes_of_programs_are_known(dtype: str) -> None:
    argument = Argument("x", dtype, (1,), is_input=True, is_output=False)
    task = dataclasses.replace(TASK, arguments=(argument,))
    assert Description.from_json(task.to_json()) == task


@pytest.mark.parametrize(
    "change",
    [
        {"device": "tpu"},
        {"device": None},
        {"target": 90},
        {"tolerance": "none"},
        {"seed": -1},
        {"target": "../sm_90"},
        {"target": "sm_90 --x"},
        {"target": ""},
        {"tolerance": -1.0},
        {"tolerance": float("nan")},
        {"seed": 1.5},
        {"more": 1},
        {"arguments": 7},
        {"arguments": [7]},
        {"arguments": [{}]},
    ],
)
def test_fields_that_are_none_of_a_task_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="no description"):
        Description.from_json(json.dumps(json.loads(TASK.to_json()) | change))


@pytest.mark.parametrize(
    "change",
    [
        {"dtype": "object"},
        {"dtype": "(1000000,1000000)f8"},
        {"dtype": "f8,f8"},
        {"dtype": "O"},
        {"dtype": "finfo"},
        {"dtype": "float99"},
        {"shape": [-1]},
        {"shape": [1.5]},
        {"shape": 3},
        {"shape": [True]},
        {"index_bound": "many"},
    ],
)
def test_arguments_that_are_none_are_refused(change: dict[str, Any]) -> None:
    fields = json.loads(TASK.to_json())
    fields["arguments"][0] |= change
    with pytest.raises(ValueError, match="no description"):
        Description.from_json(json.dumps(fields))


def test_other_versions_and_long_texts_are_refused() -> None:
    fields = json.loads(TASK.to_json())
    with pytest.raises(ValueError, match="of version 99, not 1"):
        Description.from_json(json.dumps(fields | {"version": 99}))
    for text in ("", "[]", "7", "[" * 100_000):
        with pytest.raises(ValueError):
            Description.from_json(text)
    many = dataclasses.replace(TASK, arguments=TASK.arguments * 2000)
    with pytest.raises(ValueError, match="longer than any task's"):
        many.to_json()
    with pytest.raises(ValueError, match="longer than any task's"):
        Description.from_json(" " * (description.MAX_BYTES + 1))


def test_expected_outputs_go_through_a_file(tmp_path: pathlib.Path) -> None:
    outputs = {1: np.array(2.5).astype("float32"), 2: np.array([3, -4], "int8")}
    args = (
        TASK.arguments[0],
        dataclasses.replace(TASK.arguments[1], dtype="float32"),
        TASK.arguments[2],
    )
    path = str(tmp_path / "of.outputs")
    reference.write_expected(path, reference.Expected(outputs, True, {1: 2.5, 2: 0.0}))
    read = reference.read_expected(path, args)
    assert read.positive and read.rms == {1: 2.5, 2: 0.0}
    assert read.outputs.keys() == outputs.keys()
    for index, output in outputs.items():
        assert read.outputs[index].dtype == output.dtype
        np.testing.assert_array_equal(read.outputs[index], output)
    with pytest.raises(ValueError, match="another task"):
        reference.read_expected(path, args[:2])
    whole = (tmp_path / "of.outputs").read_bytes()
    (tmp_path / "of.outputs").write_bytes(whole[:-1])
    with pytest.raises(ValueError, match="cut off"):
        reference.read_expected(path, args)


# What a builder makes of a task: a description without a program, and a reference.


def _made(task: Task, folder: pathlib.Path) -> tuple[Description, str]:
    text = payload.of(task.mod, task.target)
    reply = build.handle_reference(text, str(folder / "made"), seed=3)
    assert json.dumps(reply)
    return Description.from_json(reply["description"]), reply["library"]


def test_a_description_has_what_the_program_says() -> None:
    task = workloads.parse("gemm:16,16,64,dtype=float16", target="h200")
    described = build.describe(task.mod, task.target, seed=3)
    assert (described.device, described.target, described.seed) == ("cuda", "sm_90", 3)
    assert described.arguments == task_program.arguments(task.mod)
    assert described.tolerance == cuda_reference.tolerance(task.mod)


@pytest.mark.parametrize("text", ["softmax:8x64", "gemm:16,16,16,dtype=float16"])
def test_a_library_computes_what_the_program_does(text: str, tmp_path: pathlib.Path) -> None:
    task = workloads.parse(text, target="llvm -num-cores 2")
    described, library = _made(task, tmp_path)
    assert described.device == "cpu" and pathlib.Path(library).suffix in (".so", ".ll")
    main = tvm.runtime.load_module(library)["main"]
    run = cpu_runner.run_of(main, described.arguments)
    wanted = task_program.on_cpu(task.mod, task.target, described.arguments)(3, False)
    for index, output in run(3, False).items():
        np.testing.assert_array_equal(output, wanted[index])


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
