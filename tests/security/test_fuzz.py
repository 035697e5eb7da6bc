"""The fuzzers in small, and that their instruments see what they are there for."""

from __future__ import annotations

import multiprocessing
import signal

import pytest
import tvm

from felix.tir import bounds
from tests.security import fuzz_programs
from tests.support import share, tir_programs
from tests.support.hostile import guarded

pytest.importorskip("onnx", reason="onnx is an optional extra")

from tests.security import fuzz_models


def test_random_models_and_targets_are_answered_or_refused() -> None:
    n_inputs = share.rounds(60, 400)
    figures = fuzz_models.run(n_inputs, seed=1)
    assert figures.violations == []
    assert figures.outcomes.total() == n_inputs
    outcomes = ("read", "refused")
    expected = {f"{kind}: {each}" for kind in ("onnx", "operator") for each in outcomes}
    assert expected <= set(figures.outcomes)


@pytest.mark.parametrize(
    "outcome, answer",
    [
        ("killed by -11", {}),
        ("raised KeyError", {"raised": "KeyError"}),
        ("refused", {"error": "cannot read SECRETS!"}),
        ("refused", {"error": f"shape [{int.from_bytes(b'SECRETS!', 'little')}, 8]"}),
        ("refused", {"error": f"no {fuzz_models.KEY}"}),
        ("refused", {"error": "in /tmp/x.py"}),
        ("refused", {"error": "two\nlines"}),
        ("refused", {"error": "x" * 3000}),
        ("read", {"error": None, "opened": ["/etc/passwd"]}),
    ],
)
def test_what_must_not_be_is_seen(outcome: str, answer: dict[str, object]) -> None:
    assert list(fuzz_models._problems(outcome, answer))
    assert not list(fuzz_models._problems("refused", {"error": "one line", "opened": []}))


def test_mutated_programs_kill_no_worker():
    n_inputs = share.rounds(80, 500)
    report = fuzz_programs.fuzz(n_inputs, seed=2)
    assert report.passed(), report.lines()
    assert report.counts["refused"] > n_inputs / 4 and report.counts["run"] > n_inputs / 40


@pytest.mark.parametrize("index", ["v + 1", "v - 1"])
def test_one_element_too_far_is_a_segmentation_fault(index):
    """The pages around the arrays see the smallest overrun of a program that is not proved."""
    func = tir_programs.copy(f"A[{index}]")
    library = tvm.tirx.build(tvm.IRModule({"main": func}), "llvm")
    process = multiprocessing.get_context("fork").Process(
        target=guarded.run, args=(library["main"], func.params)
    )
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGSEGV


def test_the_fuzz_sees_what_a_missing_proof_lets_through(monkeypatch):
    """Without the proof of bounds, the same inputs kill workers."""
    monkeypatch.setattr(bounds, "prove", lambda func: None)
    report = fuzz_programs.fuzz(40, seed=1)
    assert any(death.startswith("SIG") for death in report.deaths)
