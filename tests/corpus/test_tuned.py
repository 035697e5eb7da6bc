"""What `python -m tests.corpus.tuned` says of a model; the run itself takes minutes."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.support import corpus_table
from felix import workloads
from felix.tuning import pacing, results
from tests.corpus import tuned

TASK = workloads.parse("gemm:8,8,8", target="llvm")


def _result(best: Any = None, skipped: str | None = None) -> results.TuneResult:
    return results.TuneResult(
        task=TASK,
        records=(),
        curve=(),
        best_or_none=best,
        unscheduled_us=None,
        reason="trials",
        breakdown=pacing.Breakdown(),
        skipped=skipped,
    )


@pytest.mark.parametrize(
    "result, n_tuned, left_out, failed",
    [
        (_result(best=object()), 1, [], []),
        (_result(skipped="no loops"), 0, ["import says", f"{TASK.name}: skipped: no loops"], []),
        (_result(), 0, [], [f"{TASK.name}: nothing was measured (trials)"]),
    ],
)
def test_a_task_is_tuned_left_out_or_failed(
    result: results.TuneResult, n_tuned: int, left_out: list[str], failed: list[str]
) -> None:
    model = tuned.Model("torch:one", (TASK,), tuple(left_out[:-1]))
    row = tuned.row(model, {TASK.key: result})
    assert (row["n_tasks"], row["n_tuned"]) == (1, n_tuned)
    assert (row["left_out"], row["failed"]) == (left_out, failed)
    table = corpus_table.render_tuned({"models": [row], "device": "x", "wall_s": 1.0})
    cells = [cell.strip() for cell in table.splitlines()[-1].split("|")[3:-2]]
    assert cells == list(map(str, (1, 1, n_tuned, len(left_out), len(failed))))
    text = tuned.render({"models": [row], "wall_s": 1.0, "reason": "trials"})
    assert all(each in text for each in left_out + failed)
    assert (
        f"{n_tuned} of 1 tasks tuned, {len(left_out)} left out by name, {len(failed)} failed"
        in text
    )


def test_a_later_run_replaces_its_own_models() -> None:
    def run(name: str, n_tuned: int, names: list[str]) -> dict[str, Any]:
        rows = [
            tuned.row(tuned.Model(each), {}) | {"n_tasks": 2, "n_tuned": n_tuned} for each in names
        ]
        return {
            "models": rows,
            "wall_s": 1.0,
            "command": name,
            "date": "d",
            "commit": name,
            "reason": "trials",
            "target": "llvm",
            "device": "x",
        }

    data = tuned.joined(run("first", 1, ["a", "b"]), run("second", 2, ["b", "c"]))
    data = tuned.joined(data, run("third", 0, ["c"]))
    assert {each["name"]: each["n_tuned"] for each in data["models"]} == {"a": 1, "b": 2, "c": 0}
    assert data["command"] == "first" and data["wall_s"] == 3.0
    text = corpus_table.render_tuned(data)
    assert "| x      |      3 |        3 |     6 |             3 |" in text
    assert "2 of the models on x by `second` at second. 1 of the models on x by `third`" in text
