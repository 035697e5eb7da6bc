"""Search efficiency, libraries and throughput: pieces, and what is made of them, without a GPU."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import importlib.util
import json
import pathlib
import types
from typing import Any

import pytest
import torch

import felix
from benchmarks import measure_throughput, search_efficiency
from benchmarks.support import efficiency, ratios, subgraphs
from benchmarks.support.searches import pieces, stock, tuned, vendor, winners
from felix import workloads
from felix.cli.comparison import torch_child
from felix.measure import local
from felix.runner import protocol
from felix.runner.calls import cuda_calls
from felix.tuning import online_model
from felix.workloads import catalogue
from server.tuner import warm_pools as server_pools
from tests.support import tuning_fakes
from tests.support.function_measurer import FunctionMeasurer


def run(
    name: str, strategy: str, seed: int, *points: tuple[float, float], **more: Any
) -> dict[str, Any]:
    """A piece with its bests (elapsed_s, best_us), a trial each."""
    return {
        "name": name,
        "workload": "gemm:8,8,8",
        "strategy": strategy,
        "seed": seed,
        "measured_on": {"commit": "abc", "device": "G", "date": f"2030-01-0{1 + seed}"},
        "curve": [(n, *point) for n, point in enumerate(points, 1)],
        "n_measured": len(points),
        "wall_s": points[-1][0],
        **more,
    }


RUNS = [
    run("a", "felix", 0, (1.0, 20.0), (2.0, 10.0)),
    run("a", "local", 0, (2.0, 15.0), (4.0, 10.0)),
    run("a", "felix", 1, (1.0, 10.0), (3.0, 9.9)),
    run("a", "local", 1, (1.0, 18.0), (6.0, 17.0)),  # never got there
    run("b", "felix", 0, (1.0, 30.0), (5.0, 29.0)),
    run("b", "local", 0, (2.0, 20.0), (2.5, 19.0)),
]
OTHERS: list[dict[str, Any]] = [
    {"name": name, "seed": 0, "strategy": "winners", "median_us": {"felix": 10.0, "local": us}}
    for name, us in (("a", 12.0), ("b", None))
] + [
    {"name": "a", "seed": 0, "strategy": "vendor", "latency_us": us}
    for us in [{"eager": 9.0, "inductor": 9.5, "felix": 12.0}]
]


def test_times_are_to_the_best_of_a_seed() -> None:
    """4 over 2 s, at least 6 over 1 s; of the other task 2 s over 5 s, when Felix ended."""
    assert efficiency.times(RUNS, "local") == {"a": [2.0, 6.0], "b": [0.4]}
    nowhere = run("a", "random", 0, (1.0, 9.0))
    assert efficiency.times([*RUNS[:2], nowhere], "local") == {}, "neither got there"


def test_searches_are_compared_as_a_whole_after_equal_trials_and_by_winners() -> None:
    assert efficiency.whole(RUNS, "local") == {"a": [2.0, 2.0], "b": [0.5]}
    longer = run("a", "felix", 0, (1.0, 20.0), (2.0, 16.0), (3.0, 10.0))
    assert efficiency.after_equal_trials([longer, RUNS[1]], "local") == {"a": [10 / 16]}
    assert efficiency.winners(OTHERS, "local") == {"a": [1.2]}
    assert efficiency.to_libraries(OTHERS) == {"a": 0.75}, "in turns with the libraries"


def test_re_measured_latencies_count_from_the_first_measurement_of_a_candidate() -> None:
    points = [(2.0, 20.0), (4.0, 11.0), (9.0, 11.0)]
    again = [(3, 7.5, 10.0), (2, 4.0, 10.5)]
    piece = run("a", "felix", 0, *points, remeasured=again)
    piece["curve"].append((3, 9.5, 10.0))
    assert efficiency.time_to(piece, 10.0) == 7.5 and efficiency.time_to(piece, 10.5) == 4.0
    assert efficiency.time_to(piece, 9.0) is None
    assert efficiency.searched_s(piece) == 9.0, "measuring again is no part of it"


def test_a_mean_has_an_interval_over_tasks() -> None:
    alike = ratios.mean({"a": [2.0] * 3, "b": [2.0]})
    assert (alike.mean, alike.low, alike.high) == pytest.approx((2.0, 2.0, 2.0))
    unequal = ratios.mean({"a": [2.0] * 3, "b": [0.5]})
    assert unequal.mean == pytest.approx(1.0), "tasks count, not searches"
    apart = ratios.single({"a": 0.5, "b": 1.0, "c": 2.0})
    assert apart.mean == pytest.approx(1.0) and 0.5 <= apart.low < 1.0 < apart.high <= 2.0
    assert str(alike) == "2.00 (2.00 to 2.00)"
    assert ratios.ends({"a": [4.0, 1.0], "b": [0.5]}) == ("0.50 (b)", "2.00 (a)")
    numbers = [ratios.number(each) for each in (0.054, 9.99, 10.04, 123.4)]
    assert numbers == ["0.05", "9.99", "10.0", "123"]


def test_pieces_make_a_results_file_and_a_picture(tmp_path: pathlib.Path) -> None:
    for piece in [*RUNS, *OTHERS]:
        path = pieces.path_of(tmp_path, piece["name"], piece["seed"], piece["strategy"])
        path.write_text(json.dumps({"measured_on": RUNS[0]["measured_on"]} | piece))
    data = search_efficiency.collect(tmp_path)
    assert (data["commit"], data["device"]) == ("abc", "G"), "where the pieces were measured"
    assert all("measured_on" not in run for run in data["runs"])
    searches, libraries = efficiency.render(data).split("\n\n")
    row = [cell.strip() for cell in searches.splitlines()[-1].split("|")[1:-1]]
    assert row[:3] == ["local", "2", "3"]
    assert row[4:6] == ["0.40 (b)", "3.46 (a)"] and row[-1] == "1.20 (1.20 to 1.20)"
    assert "0.75 (a)" in libraries
    assert efficiency.table_of_pieces(data).count("\n") == 1 + len(RUNS)
    efficiency.picture(data, tmp_path / "curves.svg")
    assert "<svg" in (tmp_path / "curves.svg").read_text()


def test_stock_is_judged_by_all_its_schedules_with_a_cold_cache() -> None:
    moments = [(1, 5.0), (3, 5.0), (4, 8.0), (6, 8.0)]
    curve = stock.curve_of(moments, [12.0, None, 13.0, 11.0])
    assert curve == [(1, 5.0, 12.0), (6, 8.0, 11.0)]


def test_re_measured_latencies_are_dated_by_the_records() -> None:
    def record(decisions: tuple[int, ...], elapsed_s: float, latency_us: float | None) -> Any:
        measured = types.SimpleNamespace(latency_us=latency_us, ok=latency_us is not None)
        return types.SimpleNamespace(
            sketch_index=0, decisions=decisions, elapsed_s=elapsed_s,
            measured=measured, latency_us=latency_us,
        )  # fmt: skip

    records = [record((1,), 1.0, 9.0), record((2,), 2.0, 8.0), record((3,), 3.0, 7.0)]
    repeats = [record((3,), 5.0, None), record((2,), 5.0, 7.5)]
    result = types.SimpleNamespace(records=records, repeats=repeats)
    assert tuned.remeasured(result) == [(2, 2.0, 7.5)]


def test_winners_are_timed_in_turns_if_they_are_near(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = catalogue.parse("gemm:64,64,64", target="llvm -num-cores 1")
    (sketch, *_) = felix.sketches(task)
    near, same, far, broken = (sketch.schedule(row).mod for row in sketch.sample(4, seed=0))
    latency_of = {
        str(near): 10.0,
        str(same): 11.0,
        str(far): 14.0,
        str(broken): protocol.ErrorClass.BUILD,
    }
    assert len(latency_of) == 4
    measured: list[str] = []

    def measure(mod: Any) -> float | protocol.ErrorClass:
        measured.append(str(mod))
        return latency_of[measured[-1]]

    pool = contextlib.nullcontext(FunctionMeasurer(measure))
    monkeypatch.setattr(local, "LocalPool", lambda task, options: pool)
    pieces = {name: tmp_path / f"{name}.json" for name in ("felix", "stock", "random", "never")}
    for name, mods in (("felix", [same]), ("stock", [far, near]), ("random", [broken])):
        pieces[name].touch()
        with pytest.raises(FileNotFoundError, match=f"no programs of {name}: run"):
            winners.read(pieces)
        winners.write(pieces[name], task, mods)
    times = winners.timed(task, winners.read(pieces))
    assert times == {"median_us": {"felix": 11.0, "stock": 10.0, "random": None}}
    assert measured.count(str(far)) == measured.count(str(broken)) == 1
    assert measured.count(str(near)) == measured.count(str(same)) == winners.TURNS
    winners.write(pieces["felix"], task, [])  # it found none that runs
    winners.write(pieces["stock"], task, [])
    nothing = {name: pieces[name] for name in ("felix", "stock")}
    none = winners.timed(task, winners.read(nothing))
    assert none["median_us"] == {"felix": None, "stock": None}
    with pytest.raises(FileNotFoundError, match="fewer than two searches"):
        winners.read({"felix": pieces["felix"], "never": pieces["never"]})


def test_trials_are_given_by_strategy() -> None:
    assert search_efficiency._trials("felix=32") == ("felix", 32)
    for wrong in ("felix", "felix=0", "vendor=3", "felix=x"):
        with pytest.raises(argparse.ArgumentTypeError, match="not like felix=128"):
            search_efficiency._trials(wrong)


def test_results_stay_when_there_are_no_pieces(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "results.json"
    out.write_text("before")
    options = ["--only", "none", "--work", str(tmp_path / "none"), "--out", str(out)]
    monkeypatch.setattr("sys.argv", ["search_efficiency.py", *options])
    assert search_efficiency.main() == 1
    assert "no pieces in the work folder" in capsys.readouterr().err
    assert out.read_text() == "before"


def test_every_preloaded_module_exists() -> None:
    """A fork server passes over those that do not."""
    ours = [name for name in search_efficiency.PRELOADED if not name.startswith("tvm.")]
    assert [name for name in ours if importlib.util.find_spec(name) is None] == []


@pytest.mark.slow("another search in another process")
def test_a_piece_runs_in_a_process_of_its_own(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search_efficiency, "PRELOADED", ("felix.tuning.tune",))
    out = tmp_path / "results.json"
    options = "--workload gemm:32,32,32 --target llvm --trials random=4 --strategies random"
    places = ["--work", str(tmp_path / "work"), "--out", str(out)]
    monkeypatch.setattr("sys.argv", ["search_efficiency.py", *options.split(), *places])
    assert search_efficiency.main() == 0
    (piece,) = json.loads(out.read_text())["runs"]
    assert piece["n_measured"] == 4 and piece["curve"] and "path" not in piece
    assert "--trials random=4" in json.loads(out.read_text())["command"]
    assert str(tmp_path) not in out.read_text()  # no folder of this machine
    assert {trial for trial, *_ in piece["remeasured"]} <= {1, 2, 3, 4}
    assert (tmp_path / "work" / "own-s0-random.log").exists()
    out.unlink()
    assert search_efficiency.main() == 0  # nothing is run again
    assert json.loads(out.read_text())["runs"] == [piece]


@pytest.mark.slow("two whole searches with the shipped model")
def test_felix_and_evolution_differ_in_the_search_alone(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pools: list[tuning_fakes.Pool] = []
    models: list[str] = []
    real = online_model.Learner

    def pool(task: Any, options: Any = None) -> tuning_fakes.Pool:
        pools.append(tuning_fakes.Pool(latency_of=lambda mod: 5.0 + len(str(mod)) % 97))
        return pools[-1]

    def learner(*args: Any) -> online_model.Learner:
        made = real(*args)
        models.append(f"{made.message} {made.state_dict()} {args[4:]}")
        return made

    monkeypatch.setattr(local, "LocalPool", pool)
    monkeypatch.setattr(server_pools.SharedPool, "is_usable", lambda self: True)
    monkeypatch.setattr(online_model, "Learner", learner)
    calls: list[dict[str, Any]] = []
    tune = felix.tune

    def noted(*args: Any, **kwargs: Any) -> Any:
        calls.append(dict(kwargs))
        return tune(*args, **kwargs)

    monkeypatch.setattr(felix, "tune", noted)
    request = {
        "workload": "gemm:64,64,64",
        "seed": 0,
        "target": "llvm -num-cores 1",
        "trials": 2,
        "model": None,
        "path": str(tmp_path / "piece.json"),
    }
    for strategy in ("felix", "evolution"):
        tuned.tune({"strategy": strategy, **request})
    assert len(pools) == 2 and models[0] == models[1]  # builder, runner; model and its learning
    ours, theirs = calls
    options, others = ours.pop("options"), theirs.pop("options")
    assert options.pool.__func__ is others.pool.__func__ is server_pools.Pools.take
    differing = {"round_size": 64, "first_round_size": 64, "templates": False}
    differing |= {"pool": others.pool, "make_search": others.make_search}
    assert options.make_search is None and others.make_search is not None
    assert dataclasses.replace(options, **differing) == others and ours == theirs


@pytest.mark.parametrize("name", ["gemm-skinny", "depthwise", "transposed", "reduction"])
def test_vendor_programs_compute_the_workload_in_every_layout(name: str) -> None:
    text = subgraphs.SUBGRAPHS[name]
    variants = vendor.variants(text)
    expected = ["NHWC", "NCHW"] if name in ("depthwise", "transposed") else [vendor.ONLY]
    assert list(variants) == expected
    assert catalogue.build(*variants[expected[0]]).key == catalogue.parse(text).key
    for operator, params in variants.values():
        call, inputs = vendor.program(operator, params, "cpu")
        output = catalogue.build(operator, params).mod["main"].params[-1]
        assert list(call(*inputs).shape) == [int(n) for n in output.shape]


def test_every_operator_has_a_vendor_program(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[Any] = []

    def compile_(call: Any, device: str) -> Any:
        compiled.append(lambda *inputs: call(*inputs))
        return compiled[-1]

    def in_turns_us(calls: dict[Any, Any], turns: int, burst: int) -> dict[Any, list[float]]:
        assert torch.is_inference_mode_enabled()
        for call in calls.values():
            call()
        return {name: [2.0 if calls[name].func in compiled else 1.0] for name in calls}

    monkeypatch.setattr(cuda_calls, "in_turns_us", in_turns_us)
    monkeypatch.setattr(torch_child, "compiled", compile_)
    monkeypatch.setattr(vendor, "DEVICE", "cpu")
    rows = ("rms_norm", "softmax", "layer_norm", "reduce", "elementwise")
    others = "pool2d:1,4,4,3 global_pool2d:1,4,4,3 gemm:2,2,3 conv1d:1,4,2,2 conv2d:1,4,4,2,2"
    others += " conv3d:1,4,4,4,2,2 depthwise_conv2d:1,4,4,2 conv_transpose2d:1,4,4,2,2"
    texts = [*(f"{name}:2x3" for name in rows), *others.split()]
    assert {text.partition(":")[0] for text in texts} == set(workloads.OPERATORS)
    for text in texts:
        by_layout = vendor.in_turns_us(vendor.calls(text))
        assert list(by_layout) == list(vendor.variants(text))
        assert vendor.best(by_layout) == {"eager": 1.0, "inductor": 2.0}
    winner = functools.partial(lambda: None)
    with_winner = vendor.best(vendor.in_turns_us(vendor.calls(text), {"felix": winner}))
    assert with_winner == {"eager": 1.0, "inductor": 2.0, "felix": 1.0}


def test_sets_of_subgraphs_have_no_name_in_common_and_build() -> None:
    assert len(subgraphs.EVERY) == sum(map(len, subgraphs.SETS.values()))
    assert len(set(subgraphs.EVERY.values())) == len(subgraphs.EVERY)
    for members in (subgraphs.AWKWARD, subgraphs.CONFIRMING):
        assert len(members) >= 16
        for text in members.values():
            assert workloads.parse(text).flops > 0


def test_the_better_layout_counts_for_each_kind() -> None:
    by_layout = {"a": {"eager": 2.0, "inductor": 5.0}, "b": {"eager": 3.0, "inductor": 4.0}}
    assert vendor.best(by_layout) == {"eager": 2.0, "inductor": 4.0}


def test_throughput_counts_all_candidates_and_those_that_ran() -> None:
    results = {
        "gemm": {
            "felix": {"seconds": 2.0, "latency_us": [1.0, 2.0, None, 4.0]},
            "stock": {"seconds": 40.0, "latency_us": [1.0, 2.0, None, None]},
            "felix-warm": {"seconds": 2.0, "latency_us": [1.1, 2.0, None, 4.0]},
        }
    }
    row = measure_throughput.summary(results, 3.0)["gemm"]
    assert row["felix"] == 2.0 and row["ratio"] == 20.0
    assert row["ratio_started"] == 8.0  # 40 s over 2 s and 3 s
    assert row["failed"]["stock"] == 2 and len(row["latency_ratio"]) == 9
    text = measure_throughput.render({"summary": {"gemm": row}, "candidates": 4})
    assert text.splitlines()[-1].split()[:11] == "| gemm | 2 | 0.1 | 20 | 8 |".split()


def test_no_candidate_of_throughput_is_built_before_its_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    task = catalogue.parse("gemm:64,64,64", target="h200")
    (sketch, *_) = felix.sketches(task)
    mods = [sketch.schedule(row).mod for row in sketch.sample(3, seed=0)]
    candidates = [measure_throughput.Candidates("gemm", task, mods)]
    batches: list[list[str]] = []

    class Pool(FunctionMeasurer):
        def measure(self, mods: Any) -> Any:
            batches.append([str(mod) for mod in mods])
            return super().measure(mods)

        def for_task(self, task: Any) -> Pool:
            return self

    monkeypatch.setattr(local, "LocalPool", lambda task, options: Pool(lambda mod: 1.0))
    small = catalogue.parse("gemm:16,16,16", target="h200")
    monkeypatch.setattr(workloads, "gemm", lambda *sizes, target: small)
    results: dict[str, Any] = {}
    measure_throughput.felix_pass(candidates, results, "felix", None, 2)
    start, batch = batches
    assert len(start) == 2 and not set(start) & set(batch)
    assert batch == [str(mod) for mod in mods] and len(results["gemm"]["felix"]["build_s"]) == 3
