"""What the benchmark of the corpus says of its results; the run itself takes minutes."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks import corpus
from benchmarks.support import corpus_table
from felix import workloads
from felix.tuning import pacing, results
from tests.corpus import networks
from tests.corpus.outcome import Kind, Outcome

TASK = workloads.parse("gemm:8,8,8", target="llvm")
RESULTS = [
    Outcome("add", "llvm", Kind.MODELLED, rows=6),
    Outcome("sort", "llvm", Kind.REFUSED, message="UnsupportedSchedule: a | sort\n"),
    Outcome("scan", "cuda", Kind.REFUSED, message="UnsupportedSchedule: a scan"),
    Outcome("pad", "cuda", Kind.ERROR, message="Traceback\nboom"),
]


def test_programs_that_only_metaschedule_models_count_against_the_share() -> None:
    missing = [("sort", "llvm")]
    programs = corpus.rows(RESULTS, missing)
    assert [each.get("missing") for each in programs] == [None, True, False, False]
    assert [each.get("reason", "")[-4:] for each in programs] == ["", "sort", "scan", "boom"]
    said = corpus_table.render({"programs": programs})
    llvm, cuda = ([c.strip() for c in line.split("|")[1:-1]] for line in said.splitlines()[2:4])
    assert llvm == ["llvm", "2", "1", "1", "0", "0", "1", "50.0%"]
    assert cuda == ["cuda", "2", "0", "1", "0", "1", "0", "0.0%"]
    assert said.endswith("6 schedules were compared with TVM's.")
    assert corpus.share(RESULTS, missing) == 0.5


@pytest.mark.parametrize(
    "best, skipped, n_tuned, left_out, failed",
    [
        (object(), None, 1, [], []),
        (None, "no loops", 0, ["import says", f"{TASK.name}: skipped: no loops"], []),
        (None, None, 0, [], [f"{TASK.name}: nothing was measured (trials)"]),
    ],
)
def test_a_task_is_tuned_left_out_or_failed(
    best: Any, skipped: str | None, n_tuned: int, left_out: list[str], failed: list[str]
) -> None:
    result = results.TuneResult(
        task=TASK,
        records=(),
        curve=(),
        best_or_none=best,
        unscheduled_us=None,
        reason="trials",
        breakdown=pacing.Breakdown(),
        skipped=skipped,
    )
    model = networks.Model("torch:one", (TASK,), tuple(left_out[:-1]))
    row = corpus.tuned_row(model, {TASK.key: result})
    assert (row["n_tasks"], row["n_tuned"]) == (1, n_tuned)
    assert (row["left_out"], row["failed"]) == (left_out, failed)
    table = corpus_table.render_tuned({"models": [row], "device": "x", "wall_s": 1.0})
    cells = [cell.strip() for cell in table.splitlines()[-1].split("|")[3:-2]]
    assert cells == list(map(str, (1, 1, n_tuned, len(left_out), len(failed))))


def test_a_later_run_replaces_its_own_models() -> None:
    def run(name: str, n_tuned: int, names: list[str]) -> dict[str, Any]:
        models = [corpus.tuned_row(networks.Model(each), {}) for each in names]
        facts = dict.fromkeys(("command", "commit", "date", "reason"), name)
        rows = [each | {"n_tasks": 2, "n_tuned": n_tuned} for each in models]
        return {"models": rows, "wall_s": 1.0, "device": "x", **facts}

    data = corpus.joined(run("first", 1, ["a", "b"]), run("second", 2, ["b", "c"]))
    data = corpus.joined(data, run("third", 0, ["c"]))
    assert {each["name"]: each["n_tuned"] for each in data["models"]} == {"a": 1, "b": 2, "c": 0}
    assert data["command"] == "first" and data["wall_s"] == 3.0
    text = corpus_table.render_tuned(data)
    assert "| x      |      3 |        3 |     6 |             3 |" in text
    assert "2 of the models on x by `second` at second. 1 of the models on x by `third`" in text
