"""`felix features`: the feature values of random schedules.

Features of a trace sketch are those of `felix.features.spec`, of a template sketch those of
`felix.templates.spec`. Values are untransformed (`formulas.raw`).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from felix import errors
from felix.cli.commands import inputs
from felix.features import spec
from felix.features.kind import FeatureKind
from felix.templates import spec as template_spec

if TYPE_CHECKING:
    from felix.space.sketch import Sketch
    from felix.task import Task


def run(arguments: argparse.Namespace) -> int:
    """Show; the exit code."""
    task = inputs.task(arguments.workload, arguments.target)
    from felix.space import sketch as sketching

    sketches = sketching.sketches(task, on_left_out=_note)
    if arguments.sketch is not None:
        numbers = ", ".join(str(sketch.index) for sketch in sketches)
        sketches = [sketch for sketch in sketches if sketch.index == arguments.sketch]
        if not sketches:
            raise errors.WorkloadError(f"{task.name} has the sketches {numbers}")
    tables = []
    for sketch in sketches:
        try:
            tables.append(_values(sketch, arguments.samples, arguments.seed))
        except errors.UnsupportedSchedule as error:
            _note(f"{task.name}: sketch {sketch.index} left out: {error}")
    if not tables:
        raise errors.WorkloadError(f"{task.name}: no sketch has formulas")
    if arguments.json:
        print(json.dumps(_json(task, tables)))
    else:
        for values in tables:
            _table(task.name, values, arguments.all)
    return 0


def _note(line: str) -> None:
    """What has no sketch, and why."""
    print(f"felix: {line}", file=sys.stderr)


def _json(task: Task, tables: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "task": task.name,
        "version": spec.FEATURES_VERSION,
        "features": _columns(FeatureKind.TRACE),
        "template_version": template_spec.VERSION,
        "template_features": _columns(FeatureKind.TEMPLATE),
        "sketches": tables,
    }


def _table_of(kind: str) -> Sequence[spec.Feature | template_spec.Feature]:
    """The features of sketches of a kind."""
    return spec.FEATURES if kind == FeatureKind.TRACE else template_spec.FEATURES


def _columns(kind: FeatureKind) -> list[dict[str, Any]]:
    return [{"name": f.name, "unit": f.unit, "meaning": f.meaning} for f in _table_of(kind)]


def _values(sketch: Sketch, samples: int, seed: int) -> dict[str, Any]:
    batch = sketch.sample(samples, seed)
    formulas = sketch.formulas
    raw = np.asarray(formulas.raw(batch))
    return {
        "sketch": sketch.index,
        "kind": formulas.kind.value,
        "variant": str(sketch.variant),
        "variables": [v.name for v in sketch.variables],
        "decisions": batch.tolist(),
        "rows": [{"block": str(row.block), "buffer": str(row.buffer)} for row in formulas.rows],
        "values": raw.tolist(),
    }


def _table(name: str, sketch: dict[str, Any], with_zeros: bool) -> None:
    from rich import box, console, table

    out = console.Console(file=sys.stdout, width=None if sys.stdout.isatty() else 160)
    for decisions, values in zip(sketch["decisions"], sketch["values"], strict=True):
        pairs = zip(sketch["variables"], decisions, strict=True)
        text = ", ".join(f"{variable}={value}" for variable, value in pairs)
        label = f"{name}, sketch {sketch['sketch']}, {sketch['variant']}"
        out.print(f"{label}: {text}", soft_wrap=True, highlight=False)
        rows = table.Table(box=box.SIMPLE_HEAD, pad_edge=False)
        rows.add_column("feature", no_wrap=True)
        rows.add_column("unit")
        for row in sketch["rows"]:
            both = dict.fromkeys((row["block"], row["buffer"]))  # one, where they have one name
            rows.add_column(":".join(both), justify="right")
        for column, feature in enumerate(_table_of(sketch["kind"])):
            cells = [row[column] for row in values]
            if with_zeros or any(cells):
                rows.add_row(feature.name, feature.unit, *(f"{cell:.6g}" for cell in cells))
        out.print(rows)
