"""Tables of what becomes of the corpus (`python -m tests.corpus --out FILE`), of the time that its
formulas take (`python -m tests.corpus.formula_time --out FILE`), and of what becomes of its models
(`python -m tests.corpus.tuned --out FILE`)."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any

from benchmarks.support import common

MODELLED = "modelled"
#: Tasks whose formulas take longest.
N_SLOWEST = 5
KINDS = (MODELLED, "refused", "mismatch", "error")


def statement(data: Mapping[str, Any]) -> str:
    """What share is modelled, and whether anything failed."""
    programs = data["programs"]
    modelled = [each for each in programs if each["kind"] == MODELLED]
    missing = sum(each.get("missing", False) for each in programs)
    failed = [each for each in programs if each["kind"] in ("mismatch", "error")]
    share = _share(len(modelled), missing)
    return (
        f"{len(programs):,} programs and targets: {len(modelled):,} are modelled, which is "
        f"{share:.1%} of those that MetaSchedule makes a design space of; {len(failed)} end in a "
        f"mismatch, an error, a crash or no end. {sum(each['rows'] for each in modelled):,} "
        "schedules were compared with TVM's."
    )


def _share(modelled: int, missing: int) -> float:
    return modelled / max(1, modelled + missing)


def render(data: Mapping[str, Any]) -> str:
    """Counts by target, and the refused that MetaSchedule makes a space of, with the reasons."""
    programs = data["programs"]
    counts = []
    for target in dict.fromkeys(each["target"] for each in programs):
        mine = [each for each in programs if each["target"] == target]
        of_kind = [sum(each["kind"] == kind for each in mine) for kind in KINDS]
        missing = sum(each.get("missing", False) for each in mine)
        counts.append([target, len(mine), *of_kind, missing, _share(of_kind[0], missing)])
    head = ["target", "programs", *KINDS, "not modelled, but by MetaSchedule", "share"]
    tables = [common.table(head, counts)]
    rows = [
        [each["name"], each["target"], each["kind"], each["reason"].replace("|", "\\|")]
        for each in programs
        if each.get("missing") or each["kind"] in KINDS[2:]
    ]
    if rows:
        tables.append(common.table(["program", "target", "what", "why"], rows))
    return "\n\n".join(tables)


def time_statement(data: Mapping[str, Any]) -> str:
    """The median and the largest of CPU times."""
    cpu_s = [each["cpu_s"] for each in data["timings"]]
    return (
        f"{len(cpu_s):,} tasks: {statistics.median(cpu_s):.2f} CPU seconds in the median, "
        f"{max(cpu_s):.1f} at most, {sum(each > 4 for each in cpu_s)} tasks take more than 4."
    )


def render_times(data: Mapping[str, Any]) -> str:
    """The slowest tasks of each target."""
    rows = []
    for target in dict.fromkeys(each["target"] for each in data["timings"]):
        mine = [each for each in data["timings"] if each["target"] == target]
        slowest = sorted(mine, key=lambda each: -float(each["cpu_s"]))[:N_SLOWEST]
        rows += [[target, each["name"], each["n_sketches"], each["cpu_s"]] for each in slowest]
    return common.table(["target", "slowest", "sketches", "CPU s"], rows)


def tuned_statement(data: Mapping[str, Any]) -> str:
    """How many models and tasks there are, and what became of them."""
    models = data["models"]
    imported = [each for each in models if each["refused"] is None]
    n_tasks, n_tuned = (sum(each[kind] for each in models) for kind in ("n_tasks", "n_tuned"))
    n_left_out, n_failed = (
        sum(len(each[kind]) for each in models) for kind in ("left_out", "failed")
    )
    line = (
        f"On {data['device']} ({data['target']}), {len(imported)} of {len(models)} models are "
        f"imported; {n_tuned} of their {n_tasks} tasks have a result, {n_left_out} are left out "
        f"by name, {n_failed} failed. It took {data['wall_s']:.0f} s."
    )
    for each in data.get("later", ()):
        line += f" {len(each['models'])} of the models by `{each['command']}` at {each['commit']}."
    return line


def render_tuned(data: Mapping[str, Any]) -> str:
    """Tasks of each model by form, and the reasons of what has no result."""
    rows, reasons = [], []
    for each in data["models"]:
        form, _, name = each["name"].partition(":")
        rows.append([name, form, each["n_tasks"], each["n_tuned"], len(each["left_out"])])
        why = [*each["left_out"], *each["failed"], *([each["refused"]] if each["refused"] else [])]
        reasons += [[name, form, text.replace("|", "\\|")] for text in why]
    tables = [common.table(["model", "form", "tasks", "tuned", "left out"], rows)]
    if reasons:
        tables.append(common.table(["model", "form", "why not"], reasons))
    return "\n\n".join(tables)
