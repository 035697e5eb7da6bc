"""Samples of ONNX's cases and of PyTorch's are in the state that the ledger says, or better."""

from __future__ import annotations

import pytest

from benchmarks.conformance import __main__ as conformance
from benchmarks.conformance import ledger, opinfo

#: Cases that run here.
ONNX = "^test_(isinf|shape_e|size|split_v|dropout|mod_|reduce_sum_d|layer_norm.*_2d)"
OPINFO = "^(add|softmax|fmod|cat|masked.mean|nn.functional.layer_norm|empty_like) "


def _right(out: str) -> int:
    return int(out.split(" right")[0].split()[-1])


def test_no_case_of_a_sample_is_worse(capsys: pytest.CaptureFixture[str]) -> None:
    assert len(ledger.read(conformance.FOLDER / "onnx_nodes.txt")) > 1800
    assert conformance.main(["onnx", "--only", ONNX, "--processes", "1"]) == 0
    assert _right(capsys.readouterr().out) > 40


def test_no_operator_of_a_sample_is_worse(capsys: pytest.CaptureFixture[str]) -> None:
    assert conformance.main(["opinfo", "--only", OPINFO, "--samples", "1"]) == 0
    assert _right(capsys.readouterr().out) > 12


def test_the_ledger_has_every_operator() -> None:
    """It is that of one version of PyTorch; another one has other operators."""
    path = conformance.FOLDER / "opinfo.txt"
    known = ledger.read(path)
    assert not {name for name, found in known.items() if found.state in ("failed", "unclear")}
    if path.read_text().startswith(f"# {opinfo.Cases.head}\n"):
        assert known.keys() == set(opinfo.Cases().names)
