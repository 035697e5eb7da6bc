"""What the benchmarks make of their numbers: tables, summaries, the page. None is run."""

from __future__ import annotations

import json
import math
import pathlib
from typing import Any

import pytest

from benchmarks import (
    cpu_tuning,
    cuda_build_time,
    features,
    report,
    search_cost,
)
from benchmarks.pages import statements
from benchmarks.support import common, cpu_pieces, model_tables
from benchmarks.support.service import polling as service_polling
from felix.target import cpu


def run(seed: int, felix_s: float, stock_s: float) -> dict[str, Any]:
    """One seed of one workload."""

    def piece(seconds: float) -> dict[str, Any]:
        return {"wall_s": seconds, "process_s": seconds + 10, "n_measured": 64, "n_ran": 60}

    compared = {
        "felix": {"cold_us": 10.0, "warm_us": 8.0},
        "stock": {"cold_us": 15.0, "warm_us": 8.0},
    }
    return {
        "workload": "gemm",
        "seed": seed,
        "felix": piece(felix_s),
        "stock": piece(stock_s),
        "compare": compared,
    }


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
    summary = cpu_tuning._summary("gemm", [result])
    torch = summary[-1]
    assert (torch["tool"], torch["wall_s"], torch["wall_ratio"]) == ("torch", None, None)
    assert (torch["cold_ratio"], torch["warm_ratio"]) == (0.9, 2)
    said = statements.cpu_tuning({"summary": summary, "settings": {"trials": 64}})
    assert "PyTorch is 0.90 times Felix's" in said and "warm caches 2.00 times" in said


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
    text = cpu_tuning.render(
        {"settings": {"trials": 64}, "summary": [stock], "runs": [run(0, 20, 100), partial]}
    )
    assert text.count("| felix") == 2


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
    put("stock-light")
    assert missing()


def test_a_page_is_its_template_with_tables_and_sentences(tmp_path: pathlib.Path) -> None:
    head = {
        "date": "2030-01-01T00:00:00",
        "command": "python x.py",
        "commit": "abc",
        "versions": {"felix": "1"},
        "machine": {"cpu": "C", "cores": 2, "load_average": [0.1, 0, 0]},
    }
    runs = [run(0, 20, 100)]
    result = head | {
        "benchmark": "cpu_tuning",
        "settings": {"trials": 64},
        "runs": runs,
        "summary": cpu_tuning._summary("gemm", runs),
    }
    (tmp_path / "cpu_tuning.json").write_text(json.dumps(result))
    template = "# P\n{{table cpu_tuning}}\nmiddle {{table x}}\n{{says cpu_tuning}}\ntail\n"
    page = report.fill(template, tmp_path)
    assert "commit abc" in page and "| gemm" in page and page.endswith("tail\n")
    assert "middle {{table x}}" in page, "a tag is a line of its own"
    assert "stock takes 5 to 5 times Felix's wall time" in page
    with pytest.raises(FileNotFoundError, match=r"features\.json"):
        report.fill("{{table features}}", tmp_path)


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
    assert "| gemm:8,8,8" in search_cost.render(data)
    assert "takes 2 to 2 CPU seconds" in statements.search_costs(data)
    assert "50% to 50%" in statements.search_costs(data)


def test_tables_of_cost_models() -> None:
    scores = {"pairwise": 0.9, "top1": 0.8, "top5": None, "spearman": 0.7, "rmse": 0.3, "slope": 1}
    compared = model_tables.render({"reports": [{"label": "trees", "overall": scores}]})
    assert "| trees" in compared and "0.900" in compared and "| -" in compared
    ablated = model_tables.render({"rows": [{"variant": {"name": "no x"}, "mean": scores}]})
    assert "| no x" in ablated and "1.000" in ablated


def test_every_benchmark_with_a_renderer_is_on_a_page() -> None:
    paths = [next(common.RESULTS.rglob(f"{name}.json")) for name in report.names("table")]
    benchmarks = {json.loads(path.read_text()).get("benchmark") for path in paths}
    assert benchmarks - {None} == set(report.RENDER)


@pytest.mark.parametrize(
    ("value", "text"), [(1234.5, "1,234"), (0.012345, "0.0123"), (7, "7"), (None, "-")]
)
def test_numbers_in_tables(value: Any, text: str) -> None:
    assert common.table(["a"], [[value]]).splitlines()[-1].split()[1] == text


def test_features_table_of_a_sketch_without_structures() -> None:
    entry = {
        "workload": "gemm",
        "target": "llvm",
        "n_sketches": 1,
        "tvm_us": 5000.0,
        "batch_us": 50.0,
        "large_batch_us": 10.0,
        "ratio": 100.0,
        "large_batch_ratio": 500.0,
        "extract_cold_s": [0.2],
        "extract_cached_s": [0.01],
        "extract_structure_s": [None],
    }
    text = features.render(
        {"entries": [entry], "candidates_per_sketch": 8, "batch": 2048, "peak_memory_mib": 500.0}
    )
    assert "500" in text and "| -" in text.replace("  ", " ")


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
