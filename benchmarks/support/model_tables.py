"""Tables of what `python -m costmodel compare` and `ablate` write with `--out`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.support import common


@dataclass(frozen=True, slots=True)
class Column:
    """A score: its head in tables, and what a perfect model has."""

    head: str
    ideal: float


COLUMNS = {
    "pairwise": Column("pairwise", 1),
    "top1": Column("top-1", 1),
    "top5": Column("top-5", 1),
    "near_best": Column("near best", 1),
    "spearman": Column("Spearman", 1),
    "rmse": Column("RMSE of ln", 0),
    "centred_rmse": Column("centred", 0),
    "slope": Column("slope", 1),
    "intercept": Column("intercept", 0),
}


def render(result: Mapping[str, Any]) -> str:
    """Where it was made, and the predictors side by side or the variants of an ablation."""
    if "rows" in result:
        variants = [(row["variant"]["name"], row["mean"]) for row in result["rows"]]
        parts = [*_origin(result), _scores("training", variants), *_spread(result["rows"])]
    else:
        predictors = [(report["label"], report["overall"]) for report in result["reports"]]
        parts = [*_origin(result), _scores("predictor", predictors)]
        if len(predictors) > 1:
            parts.append(_behind(predictors))
        if after := [(each["label"], each["overall"]) for each in result.get("corrected", [])]:
            parts += [
                "After measurements of each workload, its other schedules:",
                _scores("model", after),
                *_errors(result),
            ]
    return "\n\n".join(parts)


def _errors(result: Mapping[str, Any]) -> Iterator[str]:
    """Which process the model's errors are most likely of; older files do not say it."""
    if "errors" in result:
        process = result["errors"]
        yield (
            f"The errors of the model on {process['tasks']} of these workloads are most likely of "
            f"a [process](../../costmodel/online/gaussian_process.py) of length "
            f"{process['length']:g}, amplitude {process['amplitude']:g} and noise "
            f"{process['noise']:g}."
        )


def _origin(result: Mapping[str, Any]) -> Iterator[str]:
    """Data, machine and versions, if the file has them."""
    if "machine" in result:
        machine = result["machine"]
        yield (
            f"Data {result['data']} of {result['device']}; "
            f"trained on {machine['cpu']}, {machine['cores']} cores; "
            + ", ".join(f"{name} {version}" for name, version in result["versions"].items())
        )


def _scores(title: str, scores_of: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
    columns = _columns([scores for _, scores in scores_of])
    rows = [[name, *(_digits(scores.get(key)) for key in columns)] for name, scores in scores_of]
    return common.table([title, *(column.head for column in columns.values())], rows)


def _columns(scores: Sequence[Mapping[str, Any]]) -> dict[str, Column]:
    """The columns that all of these scores have; older files have fewer."""
    return {key: column for key, column in COLUMNS.items() if all(key in each for each in scores)}


def _spread(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """How far apart the seeds of one training are, where there are several."""
    n_seeds = len(rows[0].get("seeds", ()))
    if n_seeds > 1:
        ranges = ", ".join(
            f"{column.head} {max(_range(row['seeds'], key) for row in rows):.3f}"
            for key, column in _columns([s for row in rows for s in row["seeds"]]).items()
        )
        yield f"Means over {n_seeds} seeds; the widest range of one training: {ranges}."


def _range(seeds: Sequence[Mapping[str, Any]], key: str) -> float:
    values = [scores[key] for scores in seeds]
    return float(max(values) - min(values))


def _behind(predictors: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
    """On which scores another predictor is closer to the ideal than the first one."""
    (first, ours), *others = predictors
    rows = [
        [column.head, f"{ours[key]:.4f}", f"{theirs[key]:.4f}", name]
        for key, column in _columns([ours]).items()
        for name, theirs in others
        if _misses(ours, key) > _misses(theirs, key)
    ]
    if not rows:
        return f"{first} is behind nowhere."
    return f"Where {first} is behind:\n\n" + common.table(["", "it", "other", "which"], rows)


def _misses(scores: Mapping[str, Any], key: str) -> float:
    """Distance from the ideal; an undefined score is neither ahead nor behind."""
    value = scores.get(key)
    return float("nan") if value is None else abs(value - COLUMNS[key].ideal)


def _digits(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
