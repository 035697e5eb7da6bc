"""A sample of ONNX's own cases is in the state that the ledger says, or in a better one."""

from __future__ import annotations

import pathlib

import pytest

from benchmarks import conformance

#: Operators whose cases run here.
SAMPLE = "^test_(isinf|shape_e|size|split_v|dropout|mod_|reduce_sum_d|layer_norm.*_2d)"


def test_no_case_of_a_sample_is_worse(capsys: pytest.CaptureFixture[str]) -> None:
    assert len(conformance.read(conformance.LEDGER)) > 1800
    assert conformance.main(["--only", SAMPLE, "--processes", "1"]) == 0
    assert capsys.readouterr().out.endswith(", 0 refused, 25 right\n")


def test_a_case_that_got_worse_is_named(tmp_path: pathlib.Path) -> None:
    ledger = tmp_path / "ledger.txt"
    conformance.write(ledger, {"a": ("right", ""), "b": ("wrong", "output 0"), "c": ("right", "")})
    known = conformance.read(ledger)
    now = {"a": ("refused", "why"), "b": ("right", ""), "c": ("right", "")}
    assert conformance.worse(known, now) == ["a"]
    assert conformance.counts(now) == {**dict.fromkeys(conformance.STATES, 0)} | {
        "refused": 1,
        "right": 2,
    }
