"""The benchmarks of networks: what they make of their cases, one tiny case as a whole, what is
reused and the memory that is seen."""

from __future__ import annotations

import functools
import json
import pathlib
import time
from typing import Any

import pytest
import torch

import felix
from benchmarks.networks import branches, case, catalogue, compare, peers, repeated, results, stock
from felix.network import optimize
from tests.support import networks


def _run(
    name: str,
    us: dict[str, float],
    took_s: float = 30.0,
    seconds: float = 30.0,
    low: float = 0.9,
    high: float = 1.1,
    **fields: Any,
) -> dict[str, Any]:
    """A case; the interval of each ratio reaches from `low` to `high` times its median."""
    others = [peer for peer in us if peer != "felix"]
    medians = {peer: us[peer] / us["felix"] for peer in others}
    felix = {"took_s": took_s, "runs": "felix", "why": "", "groups": {}, "again_s": None}
    return {
        "name": name,
        "batch": 1,
        "dtype": "float32",
        "small": False,
        "target": "cuda",
        "seconds": seconds,
        "way": "optimize",
        "state": "abc",
        "felix": felix | {"max_error": 1e-7},
        "peers": {peer: {"ready_s": 5.0, "failure": None, "max_error": 0.0} for peer in others},
        "latency_us": us,
        "ratios": {
            peer: {"median": each, "low": low * each, "high": high * each, "turns": 100}
            for peer, each in medians.items()
        },
        **fields,
    }


def _rows(table: str) -> list[list[str]]:
    """The cells of a table below its head."""
    return [[c.strip() for c in line.split("|")[1:-1]] for line in table.splitlines()[2:]]


RESNET = {"felix": 100.0, "eager": 300.0, "eager-graph": 150.0, "reduce-overhead": 120.0}
LLAMA = {"felix": 100.0, "eager": 200.0, "eager-graph": 90.0, "stock": 50.0}


def test_the_tables_have_means_cases_and_failures() -> None:
    case = {key: _run("dcgan", RESNET)[key] for key in compare._KEY}
    failed = {**case, "failure": "the process ended with 1: out of memory"}
    files = [{"runs": [_run("resnet50", RESNET)]}, {"runs": [_run("llama", LLAMA, 40.0), failed]}]
    means, every, failures = results.render(*files).split("\n\n")  # with 30 s each
    (row,) = _rows(means)
    assert row[:4] == ["float32", "optimize", "30", "2"]
    assert row[4].startswith("1.04 (0.90 to 1.20)")  # stock is no peer of PyTorch's
    assert row[5:7] == ["0.90 (llama-b1-float32)", "1.20 (resnet50-b1-float32)"]
    assert row[7].startswith("1.16 (0.90 to 1.50)") and row[8:] == ["1", "40"]
    resnet, llama = _rows(every)
    assert resnet[:8] == "resnet50-b1-float32 optimize 30 30 felix 100 reduce-overhead 120".split()
    assert resnet[8:] == ["1.20 (1.08 to 1.32)", "1.5", "5", "-"]  # nothing was done again
    assert llama[6:10] == ["eager-graph", "90", "0.90 (0.81 to 0.99)", "0.9"]
    assert llama[-1] == "0.5"
    assert failures == f"- dcgan-b1-float32, optimize, 30 s: {failed['failure']}"
    assert results.render({"runs": []}) == ""


@pytest.mark.parametrize(
    ("eager_us", "low", "high", "is_slower"),
    [(90.0, 0.97, 1.03, True), (90.0, 0.97, 1.2, False), (99.0, 0.999, 1.001, False)],
)
def test_slower_is_what_the_whole_interval_says(
    eager_us: float, low: float, high: float, is_slower: bool
) -> None:
    us = {"felix": 100.0, "eager": eager_us}
    run = _run("dcgan", us, low=low, high=high, target="llvm -num-cores 2")
    assert results.is_slower(run) == is_slower
    means = results.render({"runs": [run]}).split("\n\n")[0]
    assert "eager / Felix" in means and _rows(means)[0][8] == str(int(is_slower))


def test_a_network_is_ahead_after_the_least_time_in_which_it_was_faster() -> None:
    slow, fast = ({"felix": us, "eager": 100.0, "eager-graph": 100.0} for us in (110.0, 80.0))
    runs = [
        _run("dcgan", slow, 31.0),
        _run("dcgan", fast, 118.0, seconds=120.0),
        _run("dcgan", fast, 59.0, seconds=60.0, way="backend"),
        _run("dcgan", fast, 64.0, dtype="bfloat16"),
    ]
    ahead = results.render({"runs": runs}).split("\n\n")[2]
    assert _rows(ahead) == [["dcgan-b1-float32", "59"], ["dcgan-b1-bfloat16", "64"]]


def test_an_unavailable_peer_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers.importlib.util, "find_spec", lambda name: None)
    model, inputs = catalogue.make("dcgan", small=True)
    with pytest.raises(peers.Unavailable, match="not installed"):
        peers.make("onnxruntime", model, inputs)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--target", "llvm", "--peers", "eager", "eager-graph"], "no peer eager-graph on llvm"),
        (["--target", "vulkan"], "the target is one of llvm, cuda"),
        (["--networks", "dcgan", "public:lenet"], "no network public:lenet"),
        (["--seconds", "30", "0"], "must be positive"),
    ],
)
def test_what_cannot_be_asked_for(
    argv: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        compare._arguments(argv)
    assert message in capsys.readouterr().err


def test_a_graph_is_prepared_last_and_batches_are_the_networks_own() -> None:
    args = compare._arguments(["--peers", "eager-graph", "max-autotune", "eager"])
    assert args.peers == ["eager", "max-autotune", "eager-graph"]
    batches = {each.name: each.batch for each in compare._cases(args)}
    assert len(batches) == 11 and batches.pop("efficientnet_b0") == 8
    assert set(batches.values()) == {1}
    args = compare._arguments(["--networks", "dcgan", "public:gpt2", "--batches", "2", "4"])
    each = {(case.name, case.batch, case.small) for case in compare._cases(args)}
    assert each == {("dcgan", 2, False), ("dcgan", 4, False), ("public:gpt2", None, True)}


def test_all_have_a_call_in_each_turn() -> None:
    order: list[str] = []
    calls = {name: functools.partial(order.append, name) for name in "abc"}
    timed_us = case.in_turns(calls, turns=100, turns_s=0.0)
    assert [len(each) for each in timed_us.values()] == [case.LEAST_TURNS] * 3
    turns = [order[number : number + 3] for number in range(0, len(order), 3)]
    assert all(sorted(turn) == list("abc") for turn in turns)
    assert [turn[0] for turn in turns] == list("abc") * 10
    assert len({tuple(turn) for turn in turns}) == 6
    figures = case.figures({"felix": [2.0, 4.0, 1.0], "eager": [4.0, 4.0, 3.0]})
    assert figures["latency_us"] == {"felix": 2.0, "eager": 4.0}
    eager = {"median": 2.0, "low": 1.0, "high": 3.0, "turns": 3}
    assert figures["ratios"] == {"eager": eager}


def test_a_peer_that_raises_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    def make(name: str, model: Any, inputs: Any) -> Any:
        if name == "inductor":
            raise ValueError("no kernel\nat all")
        return functools.partial(model, *inputs)

    monkeypatch.setattr(peers, "make", make)
    tiny = case.Case(**TINY)
    request = {"peers": ["eager", "inductor"]}
    calls, facts = case._peers(tiny, *tiny.make(), request)
    assert calls.keys() == {"eager"} and facts["eager"]["ready_s"] > 0.0
    assert facts["inductor"] == {"ready_s": None, "failure": "ValueError: no kernel"}


def test_stock_has_whole_lines(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "records.json"
    stock.drop_partial_line(path)
    assert not path.exists()
    path.write_text("[1]\n[2]\n[3")
    stock.drop_partial_line(path)
    assert path.read_text() == "[1]\n[2]\n"


TINY: dict[str, Any] = {"name": "dcgan", "batch": 1, "dtype": "float32", "small": True}
TINY |= {"target": "llvm", "seconds": 8.0, "way": "optimize"}


def test_without_records_stock_runs_as_tvm_schedules_it(tmp_path: pathlib.Path) -> None:
    tiny = case.Case(**TINY)
    model, inputs = tiny.make()
    call = stock.build(tiny, tmp_path)
    with torch.no_grad():
        torch.testing.assert_close(call(), model(*inputs), rtol=1e-4, atol=1e-5)


OPTIONS = ["--small", "--networks", "dcgan", "--dtypes", "float32", "--seconds", "8"]
OPTIONS += ["--target", "llvm"]


@pytest.mark.slow("optimizes a whole network two ways, and times it")
def test_a_tiny_case_as_a_whole(tmp_path: pathlib.Path) -> None:
    out = tmp_path / "out.json"
    command = [*OPTIONS, "--ways", "optimize", "backend", "--again", "--out", str(out)]
    assert compare.main(command) == 0
    for run in json.loads(out.read_text())["runs"]:
        felix, eager = run["felix"], run["peers"]["eager"]
        assert felix["runs"] in ("felix", "pytorch", "both") and felix["why"]
        assert felix["took_s"] > 0.0 and felix["again_s"] > 0.0 and sum(felix["groups"].values())
        assert felix["max_error"] < 1e-3 and eager["max_error"] == 0.0
        assert eager["ready_s"] > 0.0 and eager["failure"] is None
        assert run["latency_us"].keys() == {"felix", "eager"}
        assert 30 <= run["ratios"]["eager"]["turns"] <= 100
        assert run["measured_on"]["device"] and "command" not in run["measured_on"]


def test_what_is_done_is_not_run_again(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ran: list[dict[str, Any]] = []
    found: dict[str, Any] = {"failure": "it was ended for its time"}

    def in_process(request: Any, folder: pathlib.Path, end: float) -> dict[str, Any]:
        ran.append(request["case"])
        return dict(found)

    monkeypatch.setattr(compare, "_in_process", in_process)
    monkeypatch.setattr(compare, "state", lambda: "one")
    out, other = tmp_path / "out.json", tmp_path / "other.json"
    assert compare.main([*OPTIONS, "--out", str(out)]) == 1
    assert json.loads(out.read_text())["runs"][0]["failure"] == "it was ended for its time"
    found = _run("dcgan", {"felix": 100.0, "eager": 150.0})
    found = {key: found[key] for key in ("felix", "peers", "latency_us", "ratios")}
    found["device"] = "a CPU"
    assert compare.main([*OPTIONS, "--out", str(out)]) == 0 and len(ran) == 2
    assert compare.main([*OPTIONS, "--out", str(out)]) == 0 and len(ran) == 2
    assert "1.50 (1.35 to 1.65)" in capsys.readouterr().out
    assert compare.main([*OPTIONS, "--out", str(other), "--restore", str(out)]) == 0
    assert other.read_text() == out.read_text() and len(ran) == 2
    monkeypatch.setattr(compare, "state", lambda: "another")
    assert compare.main([*OPTIONS, "--out", str(out), "--limit-s", "0"]) == 0 and len(ran) == 2
    assert compare.main([*OPTIONS, "--out", str(out)]) == 0 and len(ran) == 3
    (run,) = json.loads(out.read_text())["runs"]
    assert run["state"] == "another"


def test_the_state_is_that_of_the_sources(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compare.common, "ROOT", tmp_path)
    file = tmp_path / "felix" / "a.py"
    file.parent.mkdir()
    file.write_text("x = 1\n")
    before = compare.state()
    file.with_name("notes.txt").write_text("x")
    assert compare.state() == before
    file.rename(file.with_name("b.py"))
    renamed = compare.state()
    file.with_name("b.py").write_text("x = 2\n")
    assert len({before, renamed, compare.state()}) == 3


def test_a_case_that_takes_too_long_is_ended(tmp_path: pathlib.Path) -> None:
    request = {"case": TINY, "known_results": str(tmp_path / "known.sqlite"), "again": False}
    assert compare._in_process(request, tmp_path, time.monotonic() + 0.2) == {
        "failure": "it was ended for its time"
    }


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
