"""The benchmark of kernels beside PyTorch's operators: its tables, and a tiny run as a whole."""

from __future__ import annotations

import functools
import json
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

import pytest

import felix
from benchmarks import threads
from benchmarks.support import one_pool
from felix.runner.cpu import contention
from tests.support import networks


def _ratio(median: float, spread: float = 0.1) -> dict[str, Any]:
    return {"median": median, "low": median - spread, "high": median + spread, "pairs": 10}


def _kernel(name: str, count: int, here: float, felix: float, pytorch: float) -> dict[str, Any]:
    """A kernel whose ratios in turns are the same with cold and with warm caches."""
    turns = {"felix": _ratio(felix), "pytorch": _ratio(pytorch)}
    named = {"name": name, "workload": name, "threads": count}
    return named | {"reported_us": 10.0, "here": _ratio(here), "cold": turns, "warm": turns}


def _rows(table: str) -> list[list[str]]:
    """The cells of a table below its head."""
    return [[c.strip() for c in line.split("|")[1:-1]] for line in table.splitlines()[2:]]


DATA = {
    "kernels": [
        _kernel("sum", 1, here=1.0, felix=1.0, pytorch=1.0),
        _kernel("sum", 2, here=1.0, felix=1.2, pytorch=0.9),
        _kernel("gelu", 2, here=1.3, felix=1.0, pytorch=4.0),
    ],
    "functions": [
        {"name": "erf", "threads": count, "cold": _ratio(0.5), "warm": _ratio(1.5)}
        for count in (1, 2)
    ],
}


def test_what_is_asked_has_its_largest_ratio_and_those_clearly_above() -> None:
    summary, kernels, functions = threads.render(DATA).split("\n\n")
    found = {tuple(row[:3]): row[3:] for row in _rows(summary)}
    assert len(found) == 2 * 5 + 2 * 2
    here = found["here / reported", "cold", "2"]
    assert here == ["2", "1.14", "1.30 (1.20 to 1.40): gelu", "1.1", "1"]
    ours = found["Felix, in turns / alone", "warm", "2"]
    assert ours[2:] == ["1.20 (1.10 to 1.30): sum", "1.15", "0"], "the interval holds 1.15"
    assert found["PyTorch, in turns / waiting", "cold", "2"][-1] == "1"
    assert found["function, Felix / PyTorch", "cold", "1"][-1] == "0"
    assert found["function, Felix / PyTorch", "warm", "1"][-1] == "1"
    (_, of_sum, _) = _rows(kernels)
    assert of_sum == ["sum", "2", "10", "1.00 (0.90 to 1.10)", "1.2", "0.9", "1.2", "0.9"]
    assert _rows(functions) == [["erf", "0.5", "0.5"]]
    assert "| Felix / PyTorch, cold | 1 thread | 2 threads |" in functions


def test_a_run_without_functions_has_no_table_of_them() -> None:
    (_, kernels) = threads.render(DATA | {"functions": []}).split("\n\n")
    assert len(_rows(kernels)) == 3


@pytest.mark.parametrize("waits", [False, True])
def test_calls_in_turns_are_compared_with_calls_alone(
    waits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(one_pool, "BLOCKS", 4)
    waited_us: list[float] = []
    monkeypatch.setattr(one_pool, "_wait", waited_us.append)

    def timed(calls: Mapping[str, Callable[[], object]]) -> dict[str, list[float]]:
        for call in calls.values():
            call()
        us = {"felix": 30.0, "pytorch": 60.0, "wait": 1.0}
        slower = 1.5 if {"felix", "pytorch"} <= calls.keys() else 1.0
        return {name: [slower * us[name], slower * us[name], 1e3] for name in calls}

    found = one_pool.beside({"felix": int, "pytorch": int}, timed, waits=waits)
    expected = {"median": 1.5, "low": 1.5, "high": 1.5, "pairs": 4}
    assert found["felix"] == expected | {"alone_us": 30.0, "in_turns_us": 45.0}
    assert found["pytorch"] == expected | {"alone_us": 60.0, "in_turns_us": 90.0}
    assert waited_us == ([90.0, 45.0] * 4 if waits else [])


def test_numbers_of_threads_are_those_that_there_are_cores_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for cores, counts in ((1, [1]), (2, [1, 2]), (16, [1, 2, 16])):
        monkeypatch.setattr("felix.target.cpu.available_cores", lambda cores=cores: cores)
        assert threads._arguments([]).threads == counts
    with pytest.raises(SystemExit):
        threads._arguments(["--threads", "17"])
    assert "invalid choice: 17" in capsys.readouterr().err


def test_a_tiny_run_as_a_whole(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tune = functools.partial(felix.tune, options=networks.tune_options(networks.Pool()))
    monkeypatch.setattr(felix, "tune", tune)
    monkeypatch.setattr(contention, "multiply_adds", lambda *_: lambda: 1.0)
    monkeypatch.setitem(threads.KERNELS, "sum", "reduce:16x16,axes=1")
    for name, value in {"BLOCKS": 1, "BURSTS": 2, "PAUSE_S": 0.0, "SHAPE": (16, 16)}.items():
        monkeypatch.setattr(one_pool, name, value)
    out = tmp_path / "out.json"
    command = ["--threads", "1", "--kernels", "sum", "--functions", "tanh", "log"]
    command += ["--trials", "2", "--function-trials", "2", "--out", str(out)]
    assert threads.main(command) == 0
    data = json.loads(out.read_text())
    (kernel,) = data["kernels"]
    assert (kernel["name"], kernel["threads"], kernel["here"]["pairs"]) == ("sum", 1, 2)
    assert kernel["reported_us"] == 10.0 and kernel["here_us"] > 0.0
    assert kernel["here"]["median"] == pytest.approx(kernel["here_us"] / 10.0)
    for caches in threads.CACHES:
        for each in kernel[caches].values():
            assert each["in_turns_us"] / each["alone_us"] == pytest.approx(each["median"])
    assert [each["name"] for each in data["functions"]] == ["tanh", "log"]
    for each in data["functions"]:
        assert each["max_error"] < 1e-5 and each["warm"]["pytorch_us"] > 0.0
        assert each["cold"]["pairs"] == one_pool.FUNCTION_TURNS
    assert data["benchmark"] == "threads" and data["machine"]["cores"] > 0
    assert threads.render(data) in capsys.readouterr().out
