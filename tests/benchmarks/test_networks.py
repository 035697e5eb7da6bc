"""The benchmark of whole networks: what it makes of its cases, and one tiny case as a whole."""

from __future__ import annotations

import copy
import json
import pathlib
import sys
from typing import Any

import pytest
import torch

from benchmarks.networks import catalogue, compare, peers, results, tuned
from benchmarks.pages import statements
from felix.frontend import Fusion


def _run(name: str, dtype: str, us: dict[str, float]) -> dict[str, Any]:
    case = {
        "name": name,
        "batch": 1,
        "dtype": dtype,
        "small": False,
        "target": "cuda",
        "seconds": [30, 60],
    }
    groups = [{"calls": 3, "ships": "felix"}, {"calls": 2, "ships": "pytorch"}]
    points = [{"seconds": s, "elapsed_s": s * 1.5, "report": {"groups": groups}} for s in (30, 60)]
    return {
        **case,
        "felix": {"points": points},
        "times": {"latency_us": us, "failures": {"onnxruntime": "it is not installed"}},
    }


RUNS = [
    _run("resnet50", "float32", {"eager": 300.0, "inductor": 120.0, "felix 30 s": 150.0,
                                 "felix 60 s": 100.0, "stock 60 s": 400.0}),
    _run("llama", "float32", {"eager": 200.0, "eager-graph": 90.0, "felix 30 s": 100.0,
                              "felix 60 s": 100.0, "stock 30 s": 150.0, "stock 60 s": 110.0}),
]  # fmt: skip


def test_the_fastest_peer_counts_and_stock_at_equal_time() -> None:
    resnet, llama = results.rows(RUNS)
    assert (resnet["best"], resnet["best_ratio"], resnet["eager_ratio"]) == ("inductor", 1.2, 3.0)
    assert (resnet["ahead_s"], resnet["stock_ratios"]) == (90.0, [4.0])
    assert (llama["best"], llama["best_ratio"], llama["ahead_s"]) == ("eager-graph", 0.9, None)
    assert llama["stock_ratios"] == [1.5, 1.1]


def test_ways_to_group_are_those_of_felix() -> None:
    """The benchmark does not import Felix for their names."""
    assert tuple(map(str, Fusion)) == compare.FUSIONS


def test_the_tables_have_means_curves_and_failures() -> None:
    text = results.render({"runs": RUNS})
    means = next(line for line in text.splitlines() if line.startswith("| float32"))
    assert [cell.strip() for cell in means.split("|")[3:7]] == ["2", "1.04", "0.9", "2.45"]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines()]
    assert ["llama-b1-float32", "60", "100", "110", "90", "3", "0", "2"] in rows
    assert "it is not installed" in text
    assert results.render({"runs": []}) == ""


def test_the_statement_names_who_is_behind() -> None:
    data = {"benchmark": "networks", "runs": RUNS}
    said = statements.STATEMENTS["networks"](data)
    assert "1.04 times" in said and "behind on llama-b1-float32" in said
    ahead = statements.STATEMENTS["networks"]({"runs": RUNS[:1]})
    assert "never behind" in ahead


def test_the_picture_has_a_panel_for_each_case(tmp_path: pathlib.Path) -> None:
    results.picture({"runs": RUNS}, tmp_path / "curves.svg")
    drawn = (tmp_path / "curves.svg").read_text()
    assert all(name in drawn for name in ("resnet50-b1-float32", "llama-b1-float32", "stock"))


def test_an_unavailable_peer_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers.importlib.util, "find_spec", lambda name: None)
    model, inputs = catalogue.make("dcgan", small=True)
    with pytest.raises(peers.Unavailable, match="not installed"):
        peers.make("onnxruntime", model, inputs)


def test_stock_has_the_records_of_its_time(tmp_path: pathlib.Path) -> None:
    work = tmp_path / "stock"
    work.mkdir()
    (work / "database_workload.json").write_text("[]\n")
    (work / "database_tuning_record.json").write_text("[1]\n[2]\n[3")
    assert tuned._lines(work / "database_tuning_record.json") == 2
    tuned._truncated(work, tmp_path / "point", 1)
    assert (tmp_path / "point" / "database_tuning_record.json").read_text() == "[1]\n"
    tuned._truncated(work, tmp_path / "none", 0)
    assert (tmp_path / "none" / "database_workload.json").read_text() == ""


def test_without_records_stock_runs_as_tvm_schedules_it(tmp_path: pathlib.Path) -> None:
    case = tuned.Case(
        name="dcgan", batch=1, dtype="float32", small=True, target="llvm", seconds=(1.0,)
    )
    model, inputs = case.make()
    tuned._truncated(tmp_path, tmp_path / "none", 0)
    call = tuned.build_stock(case.read(), tmp_path / "none")
    with torch.no_grad():
        torch.testing.assert_close(call(), model(*inputs), rtol=1e-4, atol=1e-5)


def test_a_tiny_case(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, picture = tmp_path / "out.json", tmp_path / "curves.svg"
    command = ["compare", "--small", "--target", "llvm", "--networks", "dcgan", "--dtypes",
               "float32", "--seconds", "8", "12", "--calls", "5", "--without", "stock", "inductor",
               "max-autotune", "--out", str(out), "--picture", str(picture)]  # fmt: skip
    monkeypatch.setattr(sys, "argv", [*command, "--work", str(tmp_path / "work")])
    assert compare.main() == 0
    (run,) = json.loads(out.read_text())["runs"]
    assert run["times"]["latency_us"].keys() == {"felix 8 s", "felix 12 s", "eager"}
    assert set(run["times"]["calls"].values()) == {5}
    assert all(error < 1e-3 for error in run["times"]["max_error"].values())
    before, after = run["felix"]["points"]
    assert before["elapsed_s"] < after["elapsed_s"]
    assert [
        sum(each["trials"] for each in point["report"]["groups"]) > 0 for point in (before, after)
    ] == [True, True]
    assert picture.exists()

    monkeypatch.setattr(
        sys, "argv", [*command, "--work", str(tmp_path / "other"), "--restore", "dcgan*"]
    )
    monkeypatch.setattr(compare, "_run", lambda request, path: pytest.fail("it was restored"))
    assert compare.main() == 0
    again = copy.deepcopy(json.loads(out.read_text())["runs"])
    assert again == [run]
