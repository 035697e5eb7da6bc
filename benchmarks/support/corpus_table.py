"""Tables of what becomes of the corpus (`python -m tests.corpus --out FILE`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.support import common

MODELLED = "modelled"
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
