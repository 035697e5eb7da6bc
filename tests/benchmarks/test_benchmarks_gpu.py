"""What the GPU benchmarks make of their numbers, without a GPU."""

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
from benchmarks import measure_throughput, search_ablation, search_efficiency, unrolling
from benchmarks.pages import statements
from benchmarks.support import efficiency, subgraphs, vendor, winners
from benchmarks.support.searches import pieces, stock, timing, tuned
from felix import search, workloads
from felix.cli.comparison import torch_child
from felix.measure import protocol, testing
from felix.measure.calls import cuda_calls
from felix.measure.pool import local
from felix.tuning import online_model
from felix.workloads import catalogue
from server.tuner import warm_pools as server_pools
from tests.support import synthetic, tuning_fakes


def run(name: str, strategy: str, seed: int, curve: list[tuple[int, float, float]]) -> Any:
    """A piece as a work folder holds it."""
    where = {"commit": "abc", "device": "G", "machine": {}, "versions": {}}
    return {
        "name": name,
        "workload": "gemm:8,8,8",
        "strategy": strategy,
        "seed": seed,
        "date": f"2030-01-0{1 + (strategy == 'stock')}",
        "measured_on": where,
        "curve": curve,
        "n_measured": curve[-1][0],
        "wall_s": curve[-1][1] + 10.0,
    }


RUNS = [
    run("gemm", "felix", 0, [(1, 2.0, 20.0), (9, 4.0, 10.0)]),
    run("gemm", "stock", 0, [(1, 20.0, 30.0), (64, 40.0, 10.4), (90, 90.0, 10.2)]),
    run("gemm", "random", 0, [(1, 1.0, 100.0), (50, 8.0, 50.0)]),
    {
        "name": "gemm",
        "workload": "gemm:8,8,8",
        "strategy": "vendor",
        "seed": 0,
        "date": "2030-01-01",
        "latency_us": {"eager": 9.0, "inductor": 9.5},
    },
]


def test_times_to_a_share_of_the_best_that_any_search_found() -> None:
    entries = {e["strategy"]: e for e in efficiency.summary(RUNS)}
    assert set(entries) == {"felix", "stock", "random"}
    assert entries["felix"]["to_95%_s"] == 4.0 and entries["felix"]["to_95%_trials"] == 9
    assert entries["stock"]["to_95%_s"] == 40.0 and entries["stock"]["to_99%_s"] is None
    assert entries["random"]["to_90%_s"] is None
    assert entries["felix"]["of_best"] == 1 and entries["random"]["of_best"] == 0.2
    assert entries["stock"]["vendor_eager_us"] == 9.0
    assert entries["stock"]["equal_us"] == 30.0  # after the nine trials that Felix had


def test_ratios_count_what_was_not_reached_as_bounds() -> None:
    entries = efficiency.summary(RUNS)
    assert efficiency.ratios(entries, "stock", 0.95) == efficiency.Ratios((10.0,), (), ())
    assert efficiency.ratios(entries, "random", 0.95) == efficiency.Ratios((), (18.0 / 4.0,), ())
    slower = [run("gemm", "felix", 0, [(1, 2.0, 20.0)]), *RUNS[1:]]
    lost = efficiency.ratios(efficiency.summary(slower), "stock", 0.95)
    assert lost == efficiency.Ratios((), (), ("gemm",))


def test_the_start_of_workers_counts_for_both_if_asked() -> None:
    felix_run, *others = RUNS
    started = [felix_run | {"pool_s": 4.0}, *others]
    entries = efficiency.summary(started)
    assert efficiency.ratios(entries, "stock", 0.95).both == (10.0,)
    assert efficiency.ratios(entries, "stock", 0.95, with_start=True).both == (40.0 / 8.0,)
    assert efficiency.ratios(entries, "random", 0.95, with_start=True).bounds == (18.0 / 8.0,)
    (row,) = (
        line
        for line in efficiency.render({"runs": started}).splitlines()
        if line.startswith("| stock         | 95%")
    )
    assert row.split() == "| stock | 95% | 1 | 10 | 0 | 10 | 0 | 5 | 5 |".split()


def test_re_measured_latencies_count_from_the_first_measurement_of_a_candidate() -> None:
    curve = [(1, 2.0, 20.0), (4, 4.0, 11.0), (9, 9.0, 11.0), (9, 9.5, 10.0)]
    piece = run("gemm", "felix", 0, curve)
    assert efficiency.time_to(efficiency.dated(piece), 10.0) == (4.0, 4)  # of the best until then
    piece["finals"] = [(7, 7.5, 10.0), (4, 4.0, 10.5)]
    assert efficiency.time_to(efficiency.dated(piece), 10.0) == (7.5, 7)
    assert efficiency.time_to(efficiency.dated(piece), 10.5) == (4.0, 4)
    (entry,) = efficiency.summary([piece])
    assert entry["best_us"] == 10.0 and entry["to_99%_s"] == 7.5
    assert efficiency.searched_s(piece) == 9.0
    unfinished = run("gemm", "felix", 0, curve[:2])
    assert efficiency.dated(unfinished) == curve[:2]
    assert efficiency.searched_s(unfinished) == unfinished["wall_s"]


def test_re_measured_latencies_are_dated_by_the_records() -> None:
    def record(decisions: tuple[int, ...], elapsed_s: float, latency_us: float | None) -> Any:
        measured = types.SimpleNamespace(latency_us=latency_us, ok=latency_us is not None)
        return types.SimpleNamespace(
            sketch_index=0, decisions=decisions, elapsed_s=elapsed_s, measurement=measured
        )

    records = [record((1,), 1.0, 9.0), record((2,), 2.0, 8.0), record((3,), 3.0, 7.0)]
    repeats = [record((3,), 5.0, None), record((2,), 5.0, 7.5)]
    result = types.SimpleNamespace(records=records, repeats=repeats)
    assert tuned.remeasured(result) == [(2, 2.0, 7.5)]


def test_stock_is_judged_by_all_its_schedules_with_a_cold_cache() -> None:
    moments = [(1, 5.0), (3, 5.0), (4, 8.0), (6, 8.0)]
    curve = stock.curve_of(moments, [12.0, None, 13.0, 11.0])
    assert curve == [(1, 5.0, 12.0), (6, 8.0, 11.0)]
    found = run("gemm", "stock", 0, curve) | {"own_best_us": 7.0, "best_warm_us": 6.5}
    text = efficiency.render({"runs": [RUNS[0] | {"best_warm_us": 8.0}, found]})
    assert text.splitlines()[-1].split() == "| gemm | 7 | 6.5 | - | 11 | 8 | 10 |".split()


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

    pool = contextlib.nullcontext(testing.FunctionMeasurer(measure))
    monkeypatch.setattr(local, "LocalPool", lambda task, options: pool)
    pieces = {name: tmp_path / f"{name}.json" for name in ("felix", "stock", "random", "never")}
    for name, mods in (("felix", [same]), ("stock", [far, near]), ("random", [broken])):
        pieces[name].touch()
        with pytest.raises(FileNotFoundError, match=f"no programs of {name}: run"):
            winners.read(pieces)
        winners.write(pieces[name], task, mods)
    times = winners.timed(task, winners.read(pieces), local.LocalOptions())
    assert times["median_us"] == {"felix": 11.0, "stock": 10.0, "random": None}
    assert times["medians_us"]["stock"] == [14.0, 10.0]
    assert measured.count(str(far)) == measured.count(str(broken)) == 1
    assert measured.count(str(near)) == measured.count(str(same)) == winners.TURNS
    winners.write(pieces["felix"], task, [])  # it found none that runs
    winners.write(pieces["stock"], task, [])
    nothing = {name: pieces[name] for name in ("felix", "stock")}
    none = winners.timed(task, winners.read(nothing), local.LocalOptions())
    assert none["median_us"] == {"felix": None, "stock": None}
    with pytest.raises(FileNotFoundError, match="fewer than two searches"):
        winners.read({"felix": pieces["felix"], "never": pieces["never"]})


def test_the_table_of_winners_compares_with_the_fastest_other() -> None:
    medians = {"felix": 10.0, "stock": 9.5, "random": 50.0}
    piece = {
        "name": "gemm",
        "workload": "gemm:8,8,8",
        "strategy": "winners",
        "seed": 0,
        "date": "2030-01-01",
        "median_us": medians,
    }
    lines = efficiency.render({"runs": [*RUNS, piece]}).splitlines()
    (row,) = (n for n, line in enumerate(lines) if line.startswith("| winners in turns"))
    assert lines[row + 2].split() == "| gemm | 10 | 50 | 9.5 | 0.950 | 0.950 |".split()
    second = piece | {"seed": 1, "median_us": {"felix": 10.0, "stock": 11.0, "random": None}}
    third = piece | {"seed": 2, "median_us": {"felix": 9.0, "stock": None, "random": None}}
    lines = efficiency.render({"runs": [*RUNS, third, piece, second]}).splitlines()
    each = "| gemm | 10 | 11 | 1.100 | 0.950 1.100 - |"  # a missing one counts as slowest
    assert lines[row + 2].split() == each.split()


def test_seeds_are_told_and_the_rest_is_medians_over_them() -> None:
    seeds = [run("gemm", "felix", seed, [(8, 4.0, us)]) for seed, us in enumerate((12, 10, 16))]
    (entry,) = efficiency.summary(seeds)
    assert (entry["seeds"], entry["best_us"], entry["of_best"]) == (3, 12, 10 / 12)
    assert (
        efficiency.render({"runs": seeds})
        .splitlines()[2]
        .startswith("| gemm | felix    |     3 |")
    )


def test_trials_are_given_by_strategy() -> None:
    assert search_efficiency._trials("felix=32") == ("felix", 32)
    for wrong in ("felix", "felix=0", "vendor=3", "felix=x"):
        with pytest.raises(argparse.ArgumentTypeError, match="not like felix=128"):
            search_efficiency._trials(wrong)


def test_searches_are_those_of_the_ablation() -> None:
    ablated = search_ablation.make_search("exact-evolution", [synthetic.FakeSketch()], None, 0)
    assert tuned.search_options("exact-evolution", None) == ablated.options
    descending = search_ablation.make_search("descent", [synthetic.FakeSketch()], None, 0)
    assert tuned.search_options("descent", None) == descending.options
    for name in ("felix", "gradient", "descent", "exact-evolution"):
        ablated = search_ablation.make_search(name, [synthetic.FakeSketch()], None, 0)
        assert tuned.TUNED[name] == ablated.kind
    own = ("felix", "gradient", "random")
    assert all(tuned.search_options(each, None) is None for each in own)


def test_tvm_s_evolution_has_its_batches_in_both() -> None:
    assert search_ablation.OF_TVM == {"evolution-24": 24, "evolution-64": 64}
    assert tuned.TVM_BATCHES == {"evolution": 64, "evolution-24": 24}
    assert {tuned.TUNED[name] for name in tuned.TVM_BATCHES} == {"tvm-evolutionary"}


def test_a_missing_time_counts_as_never_in_the_median() -> None:
    assert efficiency._median([1.0, None, 3.0]) == 3.0
    assert efficiency._median([1.0, None]) is None


def test_pieces_make_a_results_file_and_a_picture(tmp_path: pathlib.Path) -> None:
    for piece in RUNS:
        path = pieces.path_of(tmp_path, piece["name"], 0, piece["strategy"])
        path.write_text(json.dumps(piece))
    data = search_efficiency.collect(argparse.Namespace(work=tmp_path))
    text = efficiency.render(data)
    assert (data["commit"], data["device"]) == ("abc", "G")  # not of where they are put together
    assert "| stock         | 95%   |" in text and "| gemm" in text
    assert "inductor us" in text and "0.9 |" in text  # eager's 9 us over Felix's 10
    efficiency.picture(data, tmp_path / "curves.svg")
    assert "<svg" in (tmp_path / "curves.svg").read_text()


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


def test_pieces_come_back_from_a_results_file(tmp_path: pathlib.Path) -> None:
    results, work = tmp_path / "results.json", tmp_path / "work"
    results.write_text(json.dumps({"runs": RUNS}))
    search_efficiency.restore(work, results, ())
    assert not work.exists()
    search_efficiency.restore(work, results, ["gemm:*:random", "*:0:vendor"])
    assert {path.name for path in work.iterdir()} == {"gemm-s0-random.json", "gemm-s0-vendor.json"}
    assert (work / "gemm-s0-random.json").read_text() == json.dumps(RUNS[2], indent=1) + "\n"


def test_every_preloaded_module_exists() -> None:
    """A fork server passes over those that do not."""
    ours = [name for name in search_efficiency.PRELOADED if not name.startswith("tvm.")]
    assert [name for name in ours if importlib.util.find_spec(name) is None] == []


def test_a_piece_runs_in_a_process_of_its_own(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search_efficiency, "PRELOADED", ("felix.tuning.tune",))
    out = tmp_path / "results.json"
    monkeypatch.setattr(
        "sys.argv",
        [
            "search_efficiency.py",
            "--workload",
            "gemm:32,32,32",
            "--target",
            "llvm",
            "--trials",
            "random=4",
            "--strategies",
            "random",
            "--work",
            str(tmp_path / "work"),
            "--out",
            str(out),
        ],
    )
    assert search_efficiency.main() == 0
    (piece,) = json.loads(out.read_text())["runs"]
    assert piece["n_measured"] == 4 and piece["curve"] and "path" not in piece
    assert "--trials random=4" in piece["command"]
    assert str(tmp_path) not in out.read_text()  # no folder of this machine
    assert {trial for trial, *_ in piece["finals"]} <= {1, 2, 3, 4}
    assert (tmp_path / "work" / "own-s0-random.log").exists()
    out.unlink()
    assert search_efficiency.main() == 0  # nothing is run again
    assert json.loads(out.read_text())["runs"] == [piece]


def test_felix_and_evolution_differ_in_the_search_alone(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pools: list[tuning_fakes.Pool] = []
    models: list[str] = []
    real = online_model.Learner

    def pool(task: Any, options: Any) -> tuning_fakes.Pool:
        pools.append(tuning_fakes.Pool(latency_of=lambda mod: 5.0 + len(str(mod)) % 97))
        return pools[-1]

    def learner(*args: Any) -> online_model.Learner:
        made = real(*args)
        models.append(f"{made.message} {made.state_dict()} {args[4:]}")
        return made

    monkeypatch.setattr(local, "LocalPool", pool)
    monkeypatch.setattr(server_pools.SharedPool, "is_usable", lambda self: True)
    monkeypatch.setattr(online_model, "Learner", learner)
    monkeypatch.setattr(timing, "warm_us", lambda task, mod: 4.0)
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
        "max_compile_s": None,
        "path": str(tmp_path / "piece.json"),
    }
    for strategy in ("felix", "evolution"):
        tuned.alone({"strategy": strategy, **request})
    tuned.alone({"strategy": "felix", **request, "max_compile_s": 3.0})
    search = calls.pop()["options"].search
    assert {search.selection.max_compile_s, search.warm_selection.max_compile_s} == {3.0}
    assert len(pools) == 3 and models[0] == models[1]  # builder, runner; model and its learning
    ours, theirs = calls
    kinds = ours.pop("strategy"), theirs.pop("strategy")
    assert kinds == ("local", "tvm-evolutionary")
    options, others = ours.pop("options"), theirs.pop("options")
    assert options.pool.__func__ is others.pool.__func__ is server_pools.Pools.take
    batches = {"round_size": 64, "first_round_size": 64, "pool": others.pool}
    assert dataclasses.replace(options, **batches) == others and ours == theirs


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
    texts = {
        "pool2d": "pool2d:1,4,4,3",
        "rms_norm": "rms_norm:2x3",
        "softmax": "softmax:2x3",
        "layer_norm": "layer_norm:2x3",
        "global_pool2d": "global_pool2d:1,4,4,3",
        "reduce": "reduce:2x3",
        "elementwise": "elementwise:2x3",
        "gemm": "gemm:2,2,3",
        "conv1d": "conv1d:1,4,2,2",
        "conv2d": "conv2d:1,4,4,2,2",
        "conv3d": "conv3d:1,4,4,4,2,2",
        "depthwise_conv2d": "depthwise_conv2d:1,4,4,2",
        "conv_transpose2d": "conv_transpose2d:1,4,4,2,2",
    }
    assert set(texts) == set(workloads.OPERATORS)
    for text in texts.values():
        by_layout = vendor.in_turns_us(vendor.calls(text))
        assert list(by_layout) == list(vendor.variants(text))
        assert vendor.best(by_layout) == {"eager": 1.0, "inductor": 2.0}
    winner = functools.partial(lambda: None)
    with_winner = vendor.best(vendor.in_turns_us(vendor.calls(text), {"felix": winner}))
    assert with_winner == {"eager": 1.0, "inductor": 2.0, "felix": 1.0}


def test_felix_is_compared_as_it_was_timed_in_turns_with_the_libraries() -> None:
    (turns,) = (
        piece | {"latency_us": piece["latency_us"] | {"felix": 12.0}}
        for piece in RUNS
        if piece["strategy"] == "vendor"
    )
    assert efficiency.ratios_to_libraries(efficiency.summary(RUNS)) == {"gemm": 0.9}
    runs = [*RUNS[:-1], turns]
    assert efficiency.ratios_to_libraries(efficiency.summary(runs)) == {"gemm": 0.75}
    said = statements.search_efficiency({"runs": runs})
    assert "0.75 times as long as Felix's schedule (geometric mean of 1 subgraphs)" in said
    assert "0.75 times on gemm, the least" in said and "faster on 1 (1.33 to 1.33 times)" in said


def test_sets_of_subgraphs_have_no_name_in_common_and_build() -> None:
    assert len(subgraphs.EVERY) == sum(map(len, subgraphs.SETS.values()))
    assert len(set(subgraphs.EVERY.values())) == len(subgraphs.EVERY)
    for members in (subgraphs.AWKWARD, subgraphs.CONFIRMING):
        assert len(members) >= 16
        for text in members.values():
            assert workloads.parse(text).flops > 0


def test_one_thing_differs_in_a_search_that_is_compared() -> None:
    default = search.LocalOptions()
    for name, changed in tuned.LOCAL.items():
        options = tuned.search_options(name, None)
        assert options == dataclasses.replace(default, **changed) != default
    drawn = tuned.search_options("thompson", None)
    assert drawn.selection.draw_scale == drawn.warm_selection.draw_scale == tuned.DRAW_SCALE
    assert tuned.search_options("felix", None) is None
    assert 0 < default.selection.draw_scale < tuned.DRAW_SCALE
    assert tuned.search_options("lower-bound", None) == tuned.search_options("mean", None)
    mean = tuned.search_options("mean", None)
    assert mean.selection.draw_scale == mean.warm_selection.draw_scale == 0
    evolution = tuned.search_options("exact-evolution", None)
    assert evolution.selection == default.selection
    by_mean = dataclasses.replace(evolution, selection=mean.selection)
    assert tuned.search_options("evolution-mean", None) == by_mean
    gradient = search.GradientOptions()
    assert not gradient.selection.draw_scale and not gradient.warm_selection.draw_scale
    structures = tuned.search_options("more-structures", None)
    assert structures.warm_selection.structure_share < default.warm_selection.structure_share
    assert structures.selection == default.selection


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
    row = measure_throughput.summary(results)["gemm"]
    assert row["felix"] == 2.0 and row["ratio"] == 20.0 and row["ratio_ran"] == 30.0
    assert row["failed"]["stock"] == 2 and len(row["latency_ratio"]) == 9
    data = {"summary": {"gemm": row}, "workloads": results, "start_s": 3.0}
    cells = measure_throughput.render(data).splitlines()[-1].split()
    assert cells[:13] == "| gemm | 2 | 0.1 | 20 | 30 | 8 |".split()  # 40 s over 2 s and 3 s


def test_no_candidate_of_throughput_is_built_before_its_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    task = catalogue.parse("gemm:64,64,64", target="h200")
    (sketch, *_) = felix.sketches(task)
    mods = [sketch.schedule(row).mod for row in sketch.sample(3, seed=0)]
    candidates = [measure_throughput.Candidates("gemm", task, mods)]
    batches: list[list[str]] = []

    class Pool(testing.FunctionMeasurer):
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


def test_variants_are_compared_with_explicit_unrolling() -> None:
    def one(latency_us: float) -> dict[str, Any]:
        ways = {"explicit": latency_us, "pragma": 2 * latency_us}
        same = {"build_s": 1.0, "spread": None, "error": None}
        return {name: {"latency_us": value, **same} for name, value in ways.items()}

    text = unrolling.render({"workloads": {"gemm": [one(1.0), one(2.0), one(3.0)]}})
    (row,) = [line for line in text.splitlines() if "pragma" in line]
    assert "2.00 2.00 2.00" in row
