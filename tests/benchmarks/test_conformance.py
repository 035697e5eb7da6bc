"""Samples of ONNX's cases and of PyTorch's are in the state that the ledger says, or better."""

from __future__ import annotations

import pathlib

import pytest

from benchmarks.conformance import __main__ as conformance
from benchmarks.conformance import ledger, opinfo
from tests.support import share

#: Cases that run here, of ONNX fewer in `make test`.
ONNX = "^test_(isinf|shape_e|size|dropout|layer_norm.*_2d_axis1)"
MORE_ONNX = "^test_(isinf|shape_e|size|split_v|dropout|mod_|reduce_sum_d|layer_norm.*_2d)"
OPINFO = "^(softmax|cat|nn.functional.layer_norm|empty_like) "

#: Operators that differ with infinities or NaN, as the table of exceptions says.
EXCEPTIONS = {
    "_softmax_backward_data",
    "nn.functional.gelu",
    "nn.functional.group_norm",
    "nn.functional.multi_margin_loss",
    "nn.functional.multilabel_margin_loss",
    "nn.functional.scaled_dot_product_attention",
    "nn.functional.upsample_bilinear",
    *(f"nn.functional.conv_transpose{rank}d" for rank in (1, 2, 3)),
    *(f"nn.functional.interpolate.{mode}" for mode in ("linear", "bilinear", "trilinear")),
}
_BAD = ("wrong", "failed", "unclear")


def _right(out: str) -> int:
    return int(out.split(" right")[0].split()[-1])


def test_no_case_of_a_sample_is_worse(capsys: pytest.CaptureFixture[str]) -> None:
    assert len(ledger.read(conformance.FOLDER / "onnx_nodes.txt")) > 1800
    chosen = MORE_ONNX if share.ALL else ONNX
    assert conformance.main(["onnx", "--only", chosen, "--processes", "1"]) == 0
    assert _right(capsys.readouterr().out) > share.rounds(15, 40)


@pytest.mark.slow("builds programs in processes of their own; ONNX's cases do, too")
def test_no_operator_of_a_sample_is_worse(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["opinfo", "--only", OPINFO, "--samples", "1", "--processes", "1"]
    assert conformance.main(arguments) == 0
    assert _right(capsys.readouterr().out) > 7


def test_all_suites_run_unless_some_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert conformance.main(["--only", "^no such case", "--processes", "1"]) == 0
    assert [line.split(":")[0] for line in capsys.readouterr().out.splitlines()] == [
        "onnx_nodes", "opinfo"
    ]  # fmt: skip
    with pytest.raises(SystemExit):
        conformance.main(["onyx"])


def test_the_ledger_has_every_operator() -> None:
    path = conformance.FOLDER / "opinfo.txt"
    assert ledger.head(path) == opinfo.Cases.head
    known = ledger.read(path)
    assert known.keys() == set(opinfo.Cases().names)
    states = {state: {n for n, each in known.items() if each.state == state} for state in _BAD}
    assert not states["failed"] and not states["unclear"]
    assert {name.split()[0] for name in states["wrong"]} == EXCEPTIONS
    assert not [name for name in states["wrong"] if name.endswith(" finite")]


def test_a_case_that_got_worse_is_named(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "ledger.txt"
    states = {"a": "right", "b": "wrong", "c": "right"}
    ledger.write(path, {name: ledger.Found(state) for name, state in states.items()}, "a version")
    known = ledger.read(path)
    assert ledger.head(path) == "a version"
    now = {"a": ledger.Found("refused"), "b": ledger.Found("right"), "c": ledger.Found("right")}
    assert ledger.worse(known, now) == ["a"]
    counts = {**dict.fromkeys(ledger.STATES, 0), "refused": 1, "right": 2}
    assert ledger.counts(now) == counts


def test_a_case_is_its_worst_sample() -> None:
    samples = [ledger.Found("right"), ledger.Found("wrong", "why"), ledger.Found("wrong", "later")]
    worst = ledger.Found.worst(samples)
    assert (worst.state, worst.sentence) == ("wrong", "why")
    assert ledger.counts({"a": worst, "b": samples[0]})["right"] == 2


def test_a_ledger_of_another_version_is_not_compared(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    states = {"exp finite": ledger.Found("right")}
    ledger.write(tmp_path / "opinfo.txt", states, "PyTorch 1.0.0")
    chosen = ["--only", "^empty_like finite", "--samples", "1", "--processes", "1"]
    assert conformance.main(["opinfo", "--ledgers", str(tmp_path), *chosen]) == 0
    assert "opinfo.txt is of PyTorch 1.0.0" in capsys.readouterr().out


@pytest.mark.slow("draws samples of all operators")
def test_samples_of_a_smaller_count_come_first() -> None:
    operator = next(each for each in opinfo.database() if each.full_name == "add")
    few, many = (
        [sample.label for sample in opinfo.drawn(operator, count, seed=0)] for count in (3, 8)
    )
    assert many[:3] == few and len({label.split()[0] for label in many}) > 1
    assert many != [sample.label for sample in opinfo.drawn(operator, 8, seed=1)]
