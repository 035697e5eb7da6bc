"""What the benchmarks make of their numbers: tables, summaries, the page. None is run."""

from __future__ import annotations

import json
import math
import pathlib
from typing import Any

import pytest

from benchmarks import cpu_tuning, cuda_build_time, fusion, search_cost
from benchmarks.support import common, cpu_pieces, model_tables
from benchmarks.support.service import polling as service_polling
from felix.target import cpu


def run(seed: int, felix_s: float, stock_s: float) -> dict[str, Any]:
    """One seed of one workload."""

    def piece(seconds: float) -> dict[str, Any]:
        return {"wall_s": seconds, "process_s": seconds + 10, "n_measured": 64, "n_ran": 60}

    pieces = {"felix": piece(felix_s), "stock": piece(stock_s)}
    us = {"felix": {"cold_us": 10.0, "warm_us": 8.0}, "stock": {"cold_us": 15.0, "warm_us": 8.0}}
    return {"workload": "gemm", "seed": seed, "compare": us} | pieces


def test_summary_takes_medians_over_seeds_and_ratios_to_felix() -> None:
    runs = [run(0, 20, 100), run(1, 30, 300), run(2, 25, 200)]
    felix, stock = cpu_tuning._summary("gemm", runs)
    assert (felix["wall_s"], stock["wall_s"], stock["wall_ratio"]) == (25, 200, 8)
    assert stock["process_ratio"] == 210 / 35
    assert (stock["cold_ratio"], stock["warm_ratio"], felix["cold_ratio"]) == (1.5, 1, 1)
    assert cpu_tuning._summary("softmax", runs) == []


def test_pytorch_is_compared_by_latency_alone() -> None:
    result = run(0, 20, 100)
    result["compare"]["torch"] = {"cold_us": 9.0, "warm_us": 16.0}
    torch = cpu_tuning._summary("gemm", [result])[-1]
    assert (torch["tool"], torch["wall_s"], torch["wall_ratio"]) == ("torch", None, None)
    assert (torch["cold_ratio"], torch["warm_ratio"]) == (0.9, 2)
    lines = cpu_tuning.render({"runs": [result], "machine": {"cpu": "C"}}).splitlines()
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines[2:]]
    assert [row[2] for row in cells] == ["stock", "torch"]
    assert [row[3][:4] for row in cells] == ["5.00", "-"] and cells[1][5] == "0.90 (gemm)"


def test_the_best_layout_of_pytorch_counts() -> None:
    results = {
        "felix": {},
        "a": {"cold_us": 2.0, "warm_us": 4.0},
        "b": {"cold_us": 3.0, "warm_us": 1.0},
    }
    call = cpu_pieces.Call(int, [])
    best = cpu_pieces._with_best_layout(results, {"a": call, "b": call})
    assert best.keys() == {"felix", "torch"}
    assert (best["torch"]["cold_us"], best["torch"]["warm_us"]) == (2, 1)


def test_a_seed_without_comparison_does_not_count() -> None:
    partial = run(1, 1, 1)
    del partial["compare"]
    (_, stock) = cpu_tuning._summary("gemm", [run(0, 20, 100), partial])
    assert stock["n_seeds"] == 1 and stock["wall_s"] == 100
    text = cpu_tuning.table_of_workloads({"runs": [run(0, 20, 100), partial]})
    assert "| gemm     | stock |       1 |    100 |" in text


def test_comparison_is_missing_until_it_has_every_tool(tmp_path: pathlib.Path) -> None:
    def put(piece: str, content: Any = None) -> None:
        common.write(cpu_tuning._path(tmp_path, "gemm", 0, piece), content or {})

    def missing() -> bool:
        return cpu_tuning._is_missing(tmp_path, "gemm", 0, "compare")

    put("stock")
    assert not missing()
    put("felix")
    assert missing()
    put("compare", {"felix": {}, "stock": {}})
    assert not missing()


def test_build_times_count_what_a_limit_tells() -> None:
    def candidate(predicted_s: float, nvrtc_s: float, source_bytes: int = 1000) -> dict[str, Any]:
        return {
            "kind": "proposed",
            "predicted_statements": 90.0,
            "statements": 100,
            "predicted_s": predicted_s,
            "source_bytes": source_bytes,
            "lower_s": 1.0,
            "nvrtc_s": nvrtc_s,
            "nvrtc_arrays_s": 2 * nvrtc_s,
            "has_arrays": nvrtc_s == 6,
            "same_cubin": nvrtc_s == 3,
            "same_size": True,
        }

    refused = candidate(9.0, 0.0, source_bytes=10**7)
    del refused["nvrtc_s"]
    records_of = {
        "gemm": [candidate(2.0, 3.0), candidate(5.0, 5.5), candidate(7.0, 6.0), refused],
        "conv": [candidate(0.5, 0.5), candidate(6.5, 2.0)],
    }
    rows = {row[1]: row for row in cuda_build_time.summary(records_of)}
    assert list(rows) == ["gemm", "conv", "all"]
    assert rows["gemm"][-3:] == [3, 3, 0] and rows["conv"][-3:] == [0, 0, 1]
    assert rows["gemm"][-6:-3] == [2.0, "1 of 2", "2 of 2"]
    assert rows["all"][2:5] == [6, 5, "0.90 0.90 0.90"]


def test_costs_of_a_search_are_medians_over_seeds() -> None:
    def piece(cache: str, seed: int, open_s: float) -> dict[str, Any]:
        return {
            "name": "gemm",
            "workload": "gemm:8,8,8",
            "cache": cache,
            "seed": seed,
            "sketches": 3,
            "structures": 3,
            "open_s": open_s,
            "rounds_s": 1.0,
            "best_us": 5.0,
        }

    opened = {"cold": (0.5, 3.0, 1.0), "warm": (0.25, 0.125, 0.5)}
    pieces = [piece(cache, seed, s) for cache in opened for seed, s in enumerate(opened[cache])]
    (row,) = search_cost.summary(pieces)
    assert (row["cold_open_s"], row["cold_s"], row["warm_open_s"]) == (1.0, 2.0, 0.25)
    data = {"summary": [row], "candidates": 104}
    row = [cell.strip() for cell in search_cost.render(data).splitlines()[-1].split("|")[1:-1]]
    assert row == ["gemm:8,8,8", "3", "2", "50%", "1.25"]


def test_a_slowdown_is_told_with_its_error_by_pairs() -> None:
    def runs(*values: float) -> list[dict[str, Any]]:
        used = {"job_s": 10.0, "api_cpu_s": 0.3, "clients_cpu_s": 0.1}
        return [{"s_per_trial": value, **used} for value in values]

    even = service_polling.slowdown(runs(1.0, 2.0, 4.0), runs(1.1, 2.2, 4.4))
    assert even["slower"] == pytest.approx(0.1) and even["standard_error"] == pytest.approx(0.0)
    noisy = service_polling.slowdown(runs(1.0, 1.0), runs(2.0, 0.5))
    assert noisy["slower"] == pytest.approx(0.0)
    assert noisy["standard_error"] == pytest.approx(math.log(2.0))
    assert even["cpu_share"] == pytest.approx(0.04 / cpu.available_cores())


def test_commands_name_no_folders() -> None:
    argv = ["x.py", "--work", "/a", "--seeds", "2", "--out=/b", "--workloads", "gemm"]
    assert common.placeless(argv) == ["x.py", "--seeds", "2", "--workloads", "gemm"]
    assert common.placeless(["x.py", "--out"]) == ["x.py"]


def test_groups_are_compared_by_the_sums_of_a_network() -> None:
    def way(us: float) -> list[dict[str, Any]]:
        return [{"name": "a", "calls": 2, "latency_us": us}]

    groups = {fusion.RULES: way(3.0), fusion.FUSEOPS: way(4.0), fusion.PLANNED: way(2.0)}
    entry = {"network": "llama", "dtype": "float32", "groups": groups}
    text = fusion.render({"device": "G", "entries": [entry]})
    row = [cell.strip() for cell in text.splitlines()[2].split("|")[1:-1]]
    assert row == ["G", "llama", "float32", "2", "2", "2", "4", "2", "1.5"]
    assert "fuseops 2.00 (2.00 to 2.00), rules 1.50" in text


def test_results_are_written_a_record_a_line(tmp_path: pathlib.Path) -> None:
    data = {"benchmark": "b", "runs": [{"a": 1}, {"a": [2]}], "none": [], "x": {"y": 1}}
    common.write(tmp_path / "folder" / "x.json", data)
    text = (tmp_path / "folder" / "x.json").read_text()
    assert json.loads(text) == data and text.splitlines()[4] == '{"a": [2]}'


SCORES = {"pairwise": 0.9, "top1": 0.92, "top5": None, "spearman": 0.9, "rmse": 0.33, "slope": 1.0}
EVALUATED = {
    "command": "python -m costmodel evaluate --data data/cuda",
    "reports": [
        {"label": "data/pretrained/cuda/held_out.safetensors", "overall": SCORES},
        {"label": "xgboost", "overall": SCORES | {"top1": 0.91}},
    ],
    "corrected": [{"label": "corrected by 8", "overall": SCORES}],
}


def test_predictors_of_all_files_are_in_one_table() -> None:
    ablated = {
        "command": "python -m costmodel ablate --kind template",
        "rows": [{"variant": {"name": "no x"}, "mean": SCORES}],
    }
    text = model_tables.render(EVALUATED, ablated)
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines()[2:]]
    of_gpu = [["GPU", name] for name in ("network", "xgboost", "corrected by 8")]
    assert [row[:2] for row in rows] == [*of_gpu, ["generated kernels", "no x"]]
    assert rows[0][2:] == ["0.900", "0.920", "-", "0.900", "0.330", "-"]
    assert rows[1][3] == "0.910"


def test_a_row_says_whose_schedules_are_scored() -> None:
    command = "python -m costmodel compare --data data/llvm"
    assert model_tables._what({"command": command}) == "CPU"
    assert model_tables._what({"command": command, "split": "operator"}).endswith("held out")
    drawn = EVALUATED | {"command": f"{EVALUATED['command']} --sources random"}
    assert model_tables._what(drawn) == "GPU, drawn at random"
