"""Tune every task of every model of the corpus: `python -m tests.corpus.tuned --target llvm`.

All models, PyTorch's own and their ONNX exports, are imported, and their tasks are tuned in one
run of `felix.tune`, equal ones once. Of every model it prints how many of its tasks have a result,
and the name of each that has none, with the reason. Exits with 1 if a task ends in anything but a
result or a reason why it was left out, or if the run ends before all tasks had their turn. With
--keep the models that the results file has and this run has not stay in it.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import pathlib
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import felix
from benchmarks.support import common
from felix import errors, target
from felix.task import Task
from felix.tuning import results
from tests.corpus import networks, outcome


@dataclasses.dataclass(frozen=True, slots=True)
class Model:
    """A model in one form: its tasks, and what the import left out or why it refused all."""

    name: str
    tasks: tuple[Task, ...] = ()
    left_out: tuple[str, ...] = ()
    refused: str | None = None


def main() -> int:
    """Import, tune and report what the command line names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", choices=outcome.TARGETS, default="llvm")
    parser.add_argument("--trials-per-task", type=int, default=8)
    parser.add_argument("--only", default="", help="models whose name contains this")
    parser.add_argument("--out", type=pathlib.Path, help="JSON of all models")
    parser.add_argument("--keep", action="store_true", help="keep other models of that file")
    options = parser.parse_args()
    former = json.loads(options.out.read_text()) if options.keep else None
    started = time.monotonic()
    names = [name for name in networks.names() if options.only in name]
    models = [imported(name, options.target) for name in names]
    tasks = list({task.key: task for model in models for task in model.tasks}.values())
    print(f"{len(tasks)} different tasks of {len(models)} models", flush=True)
    if not tasks:
        parser.error(f"no model whose name contains {options.only!r} gives tasks")
    tuned = felix.tune(tasks, trials=options.trials_per_task * len(tasks))
    rows = [row(model, {each.task.key: each for each in tuned.results}) for model in models]
    data = common.header("corpus_tuned") | {
        "target": options.target,
        "device": target.hardware(options.target).name,
        "trials_per_task": options.trials_per_task,
        "wall_s": time.monotonic() - started,
        "reason": tuned.reason,
        "models": rows,
    }
    print(render(data))
    if options.out is not None:
        common.write(options.out, data if former is None else joined(former, data))
    is_whole = tuned.reason in ("trials", "exhausted")
    return int(not is_whole or any(each["failed"] for each in rows))


def imported(name: str, target_text: str) -> Model:
    """The tasks of a model in the form that its name begins with."""
    print(f"{common.now()} {name} ...", flush=True)
    try:
        tasks, left_out = networks.tasks_of(name, target_text)
    except errors.FelixError as error:
        return Model(name, refused=str(error))
    return Model(name, tuple(tasks), tuple(left_out))


def row(model: Model, by_key: dict[str, results.TuneResult]) -> dict[str, Any]:
    """What became of a model's tasks: `left_out` has reasons, `failed` what should not be."""
    ended = [by_key[task.key] for task in model.tasks]
    skipped = [each.failure() for each in ended if each.skipped is not None]
    failed = [each for each in ended if each.skipped is None and each.best_or_none is None]
    return {
        "name": model.name,
        "n_tasks": len(ended),
        "n_tuned": len(ended) - len(skipped) - len(failed),
        "left_out": [*model.left_out, *skipped],
        "failed": [each.failure() for each in failed],
        "refused": model.refused,
    }


def joined(former: Mapping[str, Any], data: Mapping[str, Any]) -> dict[str, Any]:
    """A later run's results with the models of a former one that it has not."""
    own = {each["name"]: each for each in data["models"]}
    rows = {each["name"]: each for each in former["models"]} | own
    return {
        **former,
        "models": list(rows.values()),
        "wall_s": former["wall_s"] + data["wall_s"],
        "later": [
            *former.get("later", ()),
            {name: data[name] for name in ("command", "date", "commit", "reason")}
            | {"models": list(own)},
        ],
    }


def render(data: dict[str, Any]) -> str:
    """A line a model, and the tasks without a result."""
    lines = []
    for each in data["models"]:
        lines.append(
            f"{each['name']:28} {each['n_tuned']:3} of {each['n_tasks']:3} tasks"
            + (f", refused: {each['refused']}" if each["refused"] else "")
        )
        lines += [f"    left out: {text}" for text in each["left_out"]]
        lines += [f"    FAILED: {text}" for text in each["failed"]]
    lines.append(f"{_totals(data['models'])}; {data['wall_s']:.0f} s, ended by {data['reason']}")
    return "\n".join(lines)


def _totals(rows: Sequence[dict[str, Any]]) -> str:
    def total(values: Iterable[int]) -> str:
        return f"{sum(values):,}"

    return (
        f"{total(each['refused'] is None for each in rows)} of {len(rows)} models imported, "
        f"{total(each['n_tuned'] for each in rows)} of {total(each['n_tasks'] for each in rows)} "
        f"tasks tuned, {total(len(each['left_out']) for each in rows)} left out by name, "
        f"{total(len(each['failed']) for each in rows)} failed"
    )


if __name__ == "__main__":
    sys.exit(main())
