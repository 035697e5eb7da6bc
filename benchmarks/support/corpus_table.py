"""What becomes of the corpus, the time that its formulas take, and what becomes of its models:
results of `python -m benchmarks.corpus`."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any

from benchmarks.support import common

MODELLED = "modelled"
KINDS = (MODELLED, "refused", "mismatch", "error")


def render(data: Mapping[str, Any]) -> str:
    """Counts by target, and how many schedules were compared."""
    programs, rows = data["programs"], []
    for target in dict.fromkeys(each["target"] for each in programs):
        mine = [each for each in programs if each["target"] == target]
        of_kind = [sum(each["kind"] == kind for each in mine) for kind in KINDS]
        missing = sum(each.get("missing", False) for each in mine)
        share = of_kind[0] / max(1, of_kind[0] + missing)
        rows.append([target, len(mine), *of_kind, missing, f"{share:.1%}"])
    compared = sum(each["rows"] for each in programs if each["kind"] == MODELLED)
    head = ["target", "programs", *KINDS, "not modelled, but by MetaSchedule", "share"]
    return f"{common.table(head, rows)}\n\n{compared:,} schedules were compared with TVM's."


def render_times(data: Mapping[str, Any]) -> str:
    """The median and the largest of CPU times."""
    cpu_s = {each["name"]: each["cpu_s"] for each in data["timings"]}
    slowest = max(cpu_s, key=lambda name: cpu_s[name])
    every = [each["cpu_s"] for each in data["timings"]]
    return (
        f"{len(every):,} tasks: {statistics.median(every):.2f} CPU seconds in the median, "
        f"{cpu_s[slowest]:.1f} at most ({slowest}), {sum(each > 4 for each in every)} tasks take "
        "more than 4."
    )


def render_tuned(*results: Mapping[str, Any]) -> str:
    """How many models and tasks there are on each device, and what became of them."""
    rows = []
    for data in results:
        models = data["models"]
        n_tasks, n_tuned = (sum(each[kind] for each in models) for kind in ("n_tasks", "n_tuned"))
        n_left_out, n_failed = (
            sum(len(each[kind]) for each in models) for kind in ("left_out", "failed")
        )
        imported = sum(each["refused"] is None for each in models)
        counts = [len(models), imported, n_tasks, n_tuned, n_left_out, n_failed]
        rows.append([data["device"], *counts, data["wall_s"]])
    head = ["device", "models", "imported", "tasks", "with a result", "left out", "failed", "s"]
    later = [
        f"{len(each['models'])} of the models on {data['device']} by `{each['command']}` at "
        f"{each['commit']}."
        for data in results
        for each in data.get("later", ())
    ]
    return "\n\n".join([common.table(head, rows), *([" ".join(later)] if later else [])])
