"""Tables of what `python -m costmodel evaluate`, `compare` and `ablate` write with `--out`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from benchmarks.support import common

#: Scores by their head in tables.
COLUMNS = {
    "pairwise": "pairwise",
    "top1": "top-1",
    "top5": "top-5",
    "spearman": "Spearman",
    "rmse": "RMSE of ln",
    "centred_rmse": "centred",
}


def kept(result: Mapping[str, Any]) -> dict[str, Any]:
    """What a results file keeps: scores over all workloads and seeds, none of each."""
    parts = {
        name: [{key: each[key] for key in keys} for each in result[name]]
        for name, keys in (
            ("reports", ("label", "overall")),
            ("corrected", ("label", "overall")),
            ("rows", ("variant", "mean")),
        )
        if name in result
    }
    return {**result, **parts}


def render(*results: Mapping[str, Any]) -> str:
    """The predictors, or the variants of an ablation, of all files side by side."""
    rows = [
        [_what(result), label, *(_digits(scores.get(key)) for key in COLUMNS)]
        for result in results
        for label, scores in _scores(result)
    ]
    return common.table(["schedules", "predictor", *COLUMNS.values()], rows)


def _scores(result: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, float | None]]]:
    """What was scored, by its name: a checkpoint's is the shipped network's."""
    for row in result.get("rows", ()):
        yield row["variant"]["name"], row["mean"]
    for report in [*result.get("reports", ()), *result.get("corrected", ())]:
        label = report["label"]
        yield "network" if label.endswith(".safetensors") else label, report["overall"]


def _what(result: Mapping[str, Any]) -> str:
    """Whose schedules: generated kernels, or those of a device."""
    if "--kind template" in result["command"]:
        return "generated kernels"
    drawn = ", drawn at random" if "--sources random" in result["command"] else ""
    held_out = ", operators held out" if result.get("split") == "operator" else ""
    return ("GPU" if "data/cuda" in result["command"] else "CPU") + drawn + held_out


def _digits(score: float | None) -> str:
    return "-" if score is None else f"{score:.3f}"
