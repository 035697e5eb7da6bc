"""The benchmark of calls of small compiled models: its table, and a tiny run as a whole."""

from __future__ import annotations

import json
import pathlib

import pytest

from benchmarks import backend_calls
from tests.support import networks


def test_a_tiny_run(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pool = networks.Pool()
    monkeypatch.setattr("felix.tuning.options.TuneOptions.open_pool", lambda self, task: pool)
    networks.timed_contenders(monkeypatch, 12.0)
    monkeypatch.setattr(backend_calls, "MODELS", {"operators": backend_calls.Chain})
    out = tmp_path / "calls.json"
    arguments = ["--seconds", "2", "--turns", "30", "--turns-s", "1", "--out", str(out)]
    assert backend_calls.main(arguments) == 0
    (case,) = json.loads(out.read_text())["cases"]
    assert case["model"] == "operators" and case["turns"] == 30
    assert set(case["latency_us"]) == {"felix", "inductor", "eager"}
    median, low, high = case["ratio"]
    assert 0.0 < low <= median <= high
    assert "Felix / inductor" in capsys.readouterr().out


def test_a_model_that_pytorch_ran_has_no_row() -> None:
    case = {"model": "m", "latency_us": dict.fromkeys(("felix", "inductor", "eager"), 2.0)}
    case |= {"ratio": [1.0, 0.9, 1.1], "turns": 30}
    cases = [case | {"is_tuned": True}, case | {"model": "n", "is_tuned": False}]
    table = backend_calls.render({"cases": cases}).splitlines()
    assert len(table) == 3 and "1.00 (0.90 to 1.10)" in table[2]
