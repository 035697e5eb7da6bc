"""Tables of cost models: all scores, and where the first predictor is behind another."""

from __future__ import annotations

from typing import Any

from benchmarks.support import model_tables

OURS = {
    "pairwise": 0.9,
    "top1": 0.92,
    "top5": 0.9619,
    "spearman": 0.9,
    "rmse": 0.33,
    "centred_rmse": 0.31,
    "slope": 0.957,
    "intercept": 0.151,
}


def reports(**theirs: float | None) -> dict[str, Any]:
    predictors = [("ours", OURS), ("trees", OURS | theirs)]
    return {"reports": [{"label": name, "overall": scores} for name, scores in predictors]}


def test_who_is_nearer_to_the_ideal_is_ahead() -> None:
    text = model_tables.render(
        reports(top1=0.91, top5=0.9621, rmse=0.4, slope=1.015, intercept=-0.123)
    )
    behind = text.partition("Where ours is behind")[2]
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in behind.splitlines()]
    assert [line for line in lines if "trees" in line] == [
        ["top-5", "0.9619", "0.9621", "trees"],
        ["slope", "0.9570", "1.0150", "trees"],
        ["intercept", "0.1510", "-0.1230", "trees"],
    ]
    assert "| ours" in text and "| 0.957 | 0.151" in text


def test_one_predictor_is_compared_with_nothing() -> None:
    alone = {"reports": reports(slope=None, top1=0.9)["reports"][:1]}
    assert "ours" in model_tables.render(alone) and "behind" not in model_tables.render(alone)


def test_an_undefined_score_is_neither_ahead_nor_behind() -> None:
    assert "ours is behind nowhere" in model_tables.render(reports(slope=None, top1=0.9))


def test_the_origin_is_shown_where_it_is_known() -> None:
    origin = {
        "data": "37a",
        "device": "NVIDIA H200",
        "versions": {"torch": "2.13"},
        "machine": {"cpu": "znver4", "cores": 2},
    }
    text = model_tables.render(reports() | origin)
    assert text.startswith("Data 37a of NVIDIA H200; trained on znver4, 2 cores; torch 2.13\n")
    assert not model_tables.render(reports()).startswith("Data")


def test_an_ablation_says_how_far_seeds_are_apart() -> None:
    seeds = [OURS, OURS | {"top1": 0.90}]
    row = {"variant": {"name": "no x"}, "mean": OURS, "seeds": seeds}
    text = model_tables.render({"rows": [row]})
    assert "| no x" in text and "Means over 2 seeds" in text and "top-1 0.020" in text
    alone = model_tables.render({"rows": [row | {"seeds": seeds[:1]}]})
    assert "Means over" not in alone
