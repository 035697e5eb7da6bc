"""Changed ONNX files are right or refused, and the judge of them sees what is not."""

from __future__ import annotations

import functools
import json
import os
import pathlib
import signal
import time
from typing import Any

import numpy as np
import pytest

from benchmarks import onnx_mutations
from benchmarks.support import forked, onnx_cases, onnx_changes

#: Of these it is known that some are right and some are refused.
FEW, MANY = range(10), range(10_000, 10_200)


@pytest.fixture(scope="module")
def originals() -> list[onnx_changes.Case]:
    return onnx_changes.bases()


def read(numbers: range, originals: list[onnx_changes.Case]) -> list[dict[str, Any]]:
    """What became of files; none of them is a defect."""
    make = functools.partial(onnx_changes.changed, originals, 0)
    rows = list(onnx_mutations.rows(numbers, make, 1))
    assert [row for row in rows if row["state"] in onnx_mutations.DEFECTS] == []
    assert {row["number"] for row in rows} == set(numbers)
    return rows


def test_changed_files_are_right_or_refused(originals: list[onnx_changes.Case]) -> None:
    assert {row["state"] for row in read(FEW, originals)} == {"right", "refused"}


@pytest.mark.slow("200 files, each imported, built and run; ten of them are in `make test`")
def test_many_changed_files_are_right_or_refused(originals: list[onnx_changes.Case]) -> None:
    counts = onnx_mutations.counts(read(MANY, originals))
    assert counts["right"] > 20 and counts["refused"] > 100


@pytest.mark.slow("some 600 files; a share of them is in `make test-all`")
def test_each_attribute_counts_or_is_refused(originals: list[onnx_changes.Case]) -> None:
    cases = onnx_changes.of_attributes(originals)
    assert len({case.changes[0].partition(" is ")[0] for case in cases}) > 150
    rows = list(onnx_mutations.rows(range(0, len(cases), 5), cases.__getitem__, 1))
    assert [row for row in rows if row["state"] in onnx_mutations.DEFECTS] == []
    assert {"right", "refused"} <= {row["state"] for row in rows}


def test_a_file_follows_from_its_number(originals: list[onnx_changes.Case]) -> None:
    def content(seed: int, number: int) -> bytes:
        made: bytes = onnx_changes.changed(originals, seed, number).model.SerializeToString()
        return made

    assert content(0, 7) == content(0, 7)
    assert len({content(seed, number) for seed in range(2) for number in range(20)}) > 35


def test_lines_of_an_earlier_run_are_taken(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.jsonl"
    row = {"seed": 0, "name": "a", "changes": ["b"], "why": "c"}
    states = ("wrong", "right", "refused")
    lines = [json.dumps(row | {"number": i, "state": s}) for i, s in enumerate(states)]
    out.write_text("\n".join(lines) + "\n")
    options = ["--out", str(out), "--processes", "1"]
    assert onnx_mutations.main(["--count", "2", "--first", "1", *options]) == 0
    assert onnx_mutations.main(["--count", "3", *options]) == 1
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].startswith("0 wrong") and printed[2] == "0 wrong: a, b: c"
    assert out.read_text().splitlines() == lines


def named(originals: list[onnx_changes.Case], name: str) -> onnx_changes.Case:
    return next(case for case in originals if case.name == name)


@pytest.mark.parametrize(
    ("changed", "extra", "expected"),
    [("", 0.0, "right"), ("", 1.0, "wrong"), ("unknown", 0.0, "accepted")],
)
def test_the_judge_sees_what_is_not_right(
    originals: list[onnx_changes.Case],
    monkeypatch: pytest.MonkeyPatch,
    changed: str,
    extra: float,
    expected: str,
) -> None:
    case = named(originals, "test_elu")
    x = case.inputs[0]
    outputs = [np.where(x > 0, x, 2 * np.expm1(x)) + np.float32(extra)]
    monkeypatch.setattr(onnx_cases, "by_felix", lambda model, data: [outputs])
    model = type(case.model)()
    model.CopyFrom(case.model)
    model.graph.node[0].attribute[0].name = changed or "alpha"
    case = onnx_changes.Case("elu", (), model, case.inputs)
    assert onnx_mutations.state(case).state == expected


def test_what_crashes_or_hangs_has_no_result() -> None:
    def work(item: str) -> str:
        if item == "crash":
            os.kill(os.getpid(), signal.SIGKILL)
        if item == "hang":
            time.sleep(600)
        return item.upper()

    found = dict(forked.results(work, ["a", "crash", "b", "hang", "c"], 2, 1.0))
    assert [found[each] for each in "abc"] == ["A", "B", "C"]
    assert found["crash"] == forked.Ended("native code ended the process")
    assert found["hang"] == forked.Ended("no end in 1 s")
