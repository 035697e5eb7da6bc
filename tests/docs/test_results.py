"""The pages of results: made whole from results files, each of which a page shows."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys
from typing import Any

import pytest

from benchmarks import report

ROOT = pathlib.Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"


def test_pages_are_up_to_date() -> None:
    command = [sys.executable, "benchmarks/report.py", "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_results_file_is_shown_and_every_table_has_a_file() -> None:
    tagged = {f"{name}.json" for kind in ("table", "says") for name in report.names(kind)}
    tagged |= {f"{name}.svg" for name in report.names("figure")}
    stored = {
        path.name
        for path in RESULTS.rglob("*.*")
        if path.suffix in (".json", ".svg") and "parts" not in path.relative_to(RESULTS).parts
    }
    assert tagged == stored


def test_every_renderer_has_results() -> None:
    stored = [json.loads(path.read_text()) for path in RESULTS.rglob("*.json")]
    assert {data["benchmark"] for data in stored if "benchmark" in data} >= set(report.RENDER)


HEAD = {
    "date": "2030-01-01T00:00:00",
    "command": "python x.py",
    "commit": "abc",
    "versions": {"felix": "1"},
    "machine": {"cpu": "C", "cores": 2, "load_average": [0.1, 0, 0]},
}


def tuned(name: str, tool: str, wall_ratio: float, cold_ratio: float) -> dict[str, Any]:
    ratios = {"wall_ratio": wall_ratio, "cold_ratio": cold_ratio}
    return {"workload": name, "tool": tool, "n_seeds": 3, **ratios}


def test_tags_are_replaced_and_the_rest_stays(tmp_path: pathlib.Path) -> None:
    folder = tmp_path / "benchmarks" / "results" / "cpu"
    folder.mkdir(parents=True)
    summary = [tuned("gemm", "stock", 3.5, 1.05), tuned("softmax", "stock", 15.2, 0.9)]
    data = HEAD | {"benchmark": "cpu_tuning", "settings": {"trials": 64}, "summary": summary}
    (folder / "runs.json").write_text(json.dumps(data))
    (folder / "curve.svg").write_text("<svg/>")
    template = "# P\n\n{{says runs}}\n\n{{figure curve}}\n\n`{{says runs}}` in a line\n"
    text = report.fill(template, folder.parent)
    assert "3.5 to 15.2 times Felix's wall time" in text
    assert "faster on gemm. Felix's winner is slower on softmax." in text
    assert "![curve](../../benchmarks/results/cpu/curve.svg)" in text
    assert text.endswith("`{{says runs}}` in a line\n")


def test_a_missing_results_file_is_an_error(tmp_path: pathlib.Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"nothing\.json"):
        report.fill("{{table nothing}}\n", tmp_path)


def test_origin_names_command_machine_and_versions() -> None:
    origin = report._origin(HEAD | {"benchmark": "features", "device": "G"})
    assert "`python x.py`, 2030-01-01, commit abc" in origin
    assert "G, C, 2 cores; load average 0.1" in origin and "felix 1" in origin
