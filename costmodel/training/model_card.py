"""The model card: a Markdown page beside a checkpoint that says what it is and is not."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from costmodel.models import checkpoint
from felix.features.kind import FeatureKind

FILE_NAME = "MODEL_CARD.md"
#: Scores of every test workload, and the weights that were scored where others ship.
SCORES = "scores.json"
HELD_OUT = "held_out.safetensors"

_MEANINGS = {
    "pairwise": "pairs of schedules (2 % or more apart) in the right order",
    "top1": "latency of the fastest measured / of the schedule predicted fastest (1 is best)",
    "top5": "the same for the best of the five predicted fastest",
    "near_best": "share of workloads whose schedule predicted fastest is within 25 % of the best",
    "spearman": "rank correlation within a workload",
    "rmse": "RMS error of ln latency",
    "centred_rmse": "the same after removing each workload's mean error",
    "slope": "of measured against predicted ln latency (1 is calibrated)",
    "intercept": "of the same line (0 is calibrated)",
}


def render(
    name: str, model: checkpoint.Predictor, metadata: checkpoint.Metadata, scores_folder: str = ""
) -> str:
    """The card's text.

    Args:
        name: of the checkpoint's file.
        model: its kind and size are stated.
        metadata: of the checkpoint.
        scores_folder: of the scores, with a slash; empty if they lie beside the card.
    """
    data, scores = metadata.data, metadata.scores
    reports = scores.get("reports", [])
    columns = _columns(reports, _MEANINGS)
    is_template = data.get("kind") == FeatureKind.TEMPLATE
    lines = [
        f"# Cost model for `{metadata.device}`",
        "",
        f"`{name}` predicts ln(latency in microseconds) of a tensor program on "
        f"{metadata.device_name or metadata.device} from its {len(metadata.feature_names)} "
        f"features per {'kernel' if is_template else 'store'} "
        f"(features version {metadata.features_version}). "
        f"Kind `{model.kind}`, {checkpoint.parameter_count(model):,} parameters.",
        "",
        "## Data",
        "",
        *_facts(data),
        "",
        "## Scores",
        "",
        f"On {scores.get('part', 'held-out workloads')}.",
        "",
        *_score_table(reports, columns),
        "",
        *[f"- `{key}`: {_MEANINGS[key]}." for key in columns],
        "",
        "Per operator, of the first predictor:",
        "",
        *_operator_table(reports),
        "",
        "## How it was made",
        "",
        f"On {metadata.date or 'an unrecorded date'} by",
        "",
        f"    {metadata.command or 'an unrecorded command'}",
        "",
        f"`{scores_folder}{SCORES}` holds the scores of every test workload. With `--final`, "
        f"`{scores_folder}{HELD_OUT}` holds the weights that were scored; the same figures "
        "come from",
        "",
        f"    python -m costmodel evaluate {'--kind template ' if is_template else ''}"
        "--data DATA --baselines "
        f"--model {scores_folder}{HELD_OUT}",
        "",
        "## Limits",
        "",
        "- The scores are of few workloads, and settings may have been chosen on them: splits by "
        "other seeds give other scores (docs/design/cost-model.md).",
        "- It ranks schedules of one workload; across workloads its scale is less reliable.",
        f"- It was measured on one machine ({metadata.device_name or metadata.device}). "
        "Another machine shifts and may reorder latencies; fine-tuning during tuning corrects "
        "for that.",
        "- Schedules that failed to build or timed out are "
        f"{'taken as slow' if data.get('failures') == 'slow' else 'not part of the training'}.",
        "- Operators, data types and extents far from those above are extrapolation.",
        "",
    ]
    return "\n".join(lines)


def _facts(data: Mapping[str, Any]) -> list[str]:
    return [f"- {key.replace('_', ' ')}: {value}" for key, value in data.items()]


def _columns(reports: Sequence[Mapping[str, Any]], names: Iterable[str]) -> list[str]:
    """Of these scores those that the reports have; older ones have fewer."""
    return [name for name in names if all(name in report["overall"] for report in reports)]


def _score_table(reports: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> list[str]:
    if not reports:
        return ["Not scored."]
    head = ["| predictor | " + " | ".join(columns) + " |", "|---" * (len(columns) + 1) + "|"]
    return head + [_row(report["label"], report["overall"], columns) for report in reports]


def _operator_table(reports: Sequence[Mapping[str, Any]]) -> list[str]:
    if not reports:
        return ["Not scored."]
    names = ("pairwise", "top1", "top5", "near_best", "spearman", "rmse", "centred_rmse")
    columns = _columns(reports, names)
    head = ["| operator | " + " | ".join(columns) + " |", "|---" * (len(columns) + 1) + "|"]
    operators = reports[0]["operators"]
    return head + [_row(name, scores, columns) for name, scores in operators.items()]


def _row(label: str, scores: Mapping[str, Any], columns: Sequence[str]) -> str:
    cells = ["-" if scores[c] is None else f"{scores[c]:.3f}" for c in columns]
    return f"| {label} | " + " | ".join(cells) + " |"
