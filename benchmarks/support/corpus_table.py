"""Tables of what becomes of the corpus (`python -m tests.corpus --out FILE`), and of the time that
its formulas take (`python -m tests.corpus.formula_time --out FILE`)."""

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
    rows = [[each["name"], each["target"], each["kind"], each["reason"].replace("|", "\\|")]
            for each in programs if each.get("missing") or each["kind"] in KINDS[2:]]  # fmt: skip
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
