"""Tables of what `python -m costmodel compare` and `ablate` write with `--out`.

Reads their JSON; feeds `report`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks import common

#: Scores in the tables, and their heads.
COLUMNS = {"pairwise": "pairwise", "top1": "top-1", "top5": "top-5", "spearman": "Spearman",
           "rmse": "RMSE of ln", "slope": "slope"}  # fmt: skip


def render(result: Mapping[str, Any]) -> str:
    """The predictors side by side, or the variants of an ablation."""
    if "rows" in result:
        found = [(row["variant"]["name"], row["mean"]) for row in result["rows"]]
        title = "training"
    else:
        found = [(report["label"], report["overall"]) for report in result["reports"]]
        title = "predictor"
    rows = [[name, *(_digits(scores[column]) for column in COLUMNS)] for name, scores in found]
    return common.table([title, *COLUMNS.values()], rows)


def _digits(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
