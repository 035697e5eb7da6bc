"""Descriptions of tasks: what is written is read, and nothing else is."""

from __future__ import annotations

import dataclasses
import json
import pathlib
from typing import Any

import numpy as np
import pytest

from felix.measure import description
from felix.measure.checking import reference
from felix.measure.checking.reference import Argument
from felix.measure.description import Description

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
