"""The benchmarks of networks: what they make of their cases, one tiny case as a whole, what is
reused and the memory that is seen."""

from __future__ import annotations

import functools
import json
import pathlib
import sys
import time
from typing import Any

import pytest
import torch

import felix
from benchmarks.networks import branches, catalogue, compare, peers, repeated, results, tuned
from felix.frontend import Fusion
from felix.network import optimize
from tests.support import networks


def _run(name: str, dtype: str, us: dict[str, float]) -> dict[str, Any]:
    case = {
        "name": name,
        "batch": 1,
        "dtype": dtype,
        "small": False,
        "target": "cuda",
        "seconds": [30, 60],
    }
    points = [{"seconds": s, "elapsed_s": s * 1.5} for s in (30, 60)]
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
    assert (resnet["ahead_s"], resnet["stock_ratio"]) == (90.0, 4.0)
    assert (llama["best"], llama["best_ratio"], llama["ahead_s"]) == ("eager-graph", 0.9, None)
    assert llama["stock_ratio"] == 1.1


def test_ways_to_group_are_those_of_felix() -> None:
    """The benchmark does not import Felix for their names."""
    assert tuple(map(str, Fusion)) == compare.FUSIONS


def test_the_tables_have_means_cases_and_failures() -> None:
    means, cases = results.render({"runs": RUNS[:1]}, {"runs": RUNS[1:]}).split("\n\n")
    cells = [cell.strip() for cell in means.splitlines()[-1].split("|")[1:-1]]
    assert cells[:2] == ["float32", "2"] and cells[2].startswith("1.04 (0.90 to 1.20)")
    assert cells[3:] == ["0.90 (llama-b1-float32)", "1.20 (resnet50-b1-float32)"]
    cells = [cell.strip() for cell in cases.splitlines()[-1].split("|")[1:-1]]
    assert cells == ["llama-b1-float32", "60", "100", "eager-graph", "90", "0.9", "2", "1.1", "-"]
    assert results.render({"runs": []}) == ""
    assert "it is not installed" in results.table_of_peers(RUNS)


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


@pytest.mark.slow("builds a network as TVM does")
def test_without_records_stock_runs_as_tvm_schedules_it(tmp_path: pathlib.Path) -> None:
    case = tuned.Case(
        name="dcgan", batch=1, dtype="float32", small=True, target="llvm", seconds=(1.0,)
    )
    model, inputs = case.make()
    tuned._truncated(tmp_path, tmp_path / "none", 0)
    call = tuned.build_stock(case.read(), tmp_path / "none")
    with torch.no_grad():
        torch.testing.assert_close(call(), model(*inputs), rtol=1e-4, atol=1e-5)


@pytest.mark.slow("tunes a whole network twice and times it")
def test_a_tiny_case(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, picture = tmp_path / "out.json", tmp_path / "curves.svg"
    command = ["compare", "--small", "--target", "llvm", "--networks", "dcgan", "--dtypes",
               "float32", "--seconds", "8", "12", "--calls", "5", "--without", "stock", "inductor",
               "max-autotune", "--out", str(out), "--picture", str(picture)]  # fmt: skip
    monkeypatch.setattr(sys, "argv", [*command, "--work", str(tmp_path / "work")])
    assert compare.main() == 0
    (run,) = json.loads(out.read_text())["runs"]
    timed = {"felix 8 s", "felix 12 s", "eager", "onnxruntime"}
    assert run["times"]["latency_us"].keys() == timed
    assert set(run["times"]["calls"].values()) == {5}
    assert all(error < 1e-3 for error in run["times"]["max_error"].values())
    before, after = run["felix"]["points"]
    assert before["elapsed_s"] < after["elapsed_s"]
    assert picture.exists()


def test_networks_have_the_results_of_their_papers() -> None:
    with torch.no_grad():
        images = branches.googlenet().eval()(torch.randn(1, 3, 64, 64))
        clicks = branches.DLRM(rows=10)(torch.randn(2, 13), torch.randint(0, 10, (2, 26)))
    assert images.shape == (1, 1000)
    assert clicks.shape == (2, 1)
    assert bool(((clicks > 0) & (clicks < 1)).all())


def test_a_row_has_medians_and_the_extreme_ratios() -> None:
    captured = [
        {"branches": 4, "in_order_us": us, "branched_us": 10.0} for us in (30.0, 20.0, 25.0)
    ]
    run = {"name": "dlrm", "small": False, "dtype": "float32", "calls": 89}
    (line, chain) = results.render_branches(
        {"runs": [run | {"captured": captured}, run | {"name": "bert", "captured": []}]}
    ).splitlines()[-2:]
    cells, of_chain = ([c.strip() for c in row.split("|")[1:-1]] for row in (line, chain))
    assert cells == "dlrm-float32 89 4 25 10 2.5 2 3".split()
    assert of_chain == "bert-float32 89 1 - - - - -".split()


CASE = {"name": "dcgan", "dtype": "float32", "small": True, "target": networks.TARGET}
CASE |= {"batches": [1, 2], "trials": 32}
MIB = 1 << 20


@pytest.mark.slow("tunes a whole network three times")
def test_the_same_network_is_known_and_another_batch_is_similar(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = networks.tune_options(networks.Pool())
    fake = functools.partial(optimize.optimize, options=options, pytorch=False)
    monkeypatch.setattr(felix, "optimize", fake)
    first = repeated._optimize(CASE, 1, tmp_path)
    assert (first["known"], first["similar"], first["trials"]) == (0, 0, 32)
    assert first["tasks"] > 2 and first["max_error"] < 1e-4
    again = repeated._optimize(CASE, 1, tmp_path)
    assert (again["known"], again["similar"], again["trials"]) == (first["tasks"], 0, 0)
    other = repeated._optimize(CASE, 2, tmp_path)
    assert (other["known"], other["similar"]) == (0, other["tasks"])
    run = {**CASE, "first": first, "again": again, "batch": other, "peak_gib": 0.5}
    row = results.render_repeated({"runs": [run]}).splitlines()[-1]
    assert [cell.strip() for cell in row.split("|")[1:3]] == ["dcgan-small-float32", "32"]


def test_memory_of_this_process_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repeated, "_EVERY_S", 0.01)
    before_bytes, memory = repeated._used_bytes(), repeated.Memory()
    held = bytearray(128 * MIB)
    held[::4096] = b"x" * len(held[::4096])
    time.sleep(0.5)
    peak_bytes = memory.end()
    assert peak_bytes - before_bytes > 100 * MIB
