"""`felix compile`: the artifact of the best schedule of an earlier run, killed ones included."""

from __future__ import annotations

import argparse
import dataclasses
import json
import pathlib
from typing import Any

from felix import errors
from felix.artifact import export
from felix.cli import report
from felix.database import records, session
from felix.runner import protocol
from felix.task import Task
from felix.tuning import pacing, results, task_search


def run(arguments: argparse.Namespace) -> int:
    """Build and export; the exit code."""
    source = pathlib.Path(arguments.source)
    tuned, results_folder = _results(source)
    out = export.check_writable(arguments.out or results_folder)
    folders = [out] if len(tuned) == 1 else results.folders(out, tuned)
    for result in tuned:
        result.best  # noqa: B018  (raises before anything is written)
    for result, folder in zip(tuned, folders, strict=True):
        result.export(folder)
    if arguments.json:
        print(json.dumps([_json(r, f) for r, f in zip(tuned, folders, strict=True)], indent=1))
        return 0
    for result, folder in zip(tuned, folders, strict=True):
        latency = report.duration(result.best.latency_us)
        print(f"{result.task.name}: {latency}, {result.gflops:.1f} GFLOP/s, in {folder}")
        for note in result.notes():
            print(note)
        print(f"run it: python {folder / 'run.py'}")
    return 0


def _results(source: pathlib.Path) -> tuple[list[results.TuneResult], pathlib.Path]:
    """The results stored in a folder or file, and the output folder they belong to."""
    if not source.exists():
        raise errors.RecordError(f"there is no {source}")
    inside = source.parent if source.is_file() else source
    folders = [inside] if source.is_file() else [source / session.FOLDER, source]
    path = source if source.is_file() else None
    for folder in folders:
        if (folder / "session.json").exists():
            stored = records.read(path or folder / "records.jsonl")
            return _of_session(folder, stored), folder.parent
    if (inside / "manifest.json").exists():
        stored = records.read(path or inside / "records.jsonl")
        return [_of_artifact(inside, stored)], inside
    raise errors.RecordError(f"no tuning session and no artifact in {inside}")


def _of_session(folder: pathlib.Path, stored: list[records.Trial]) -> list[results.TuneResult]:
    tasks = session.stored_tasks(folder)
    baselines = session.stored_baselines(folder, len(tasks))
    return [
        _result(task, [r for r in stored if r.task_key == task.key], baseline)
        for task, baseline in zip(tasks, baselines, strict=True)
    ]


def _of_artifact(folder: pathlib.Path, stored: list[records.Trial]) -> results.TuneResult:
    manifest = session.read_json(folder / "manifest.json")
    try:
        text = (folder / "workload.json").read_text()
        name, target = manifest["task"]["name"], manifest["target"]
    except OSError as error:
        raise errors.RecordError(f"cannot read {folder}: {error.strerror}") from error
    except (KeyError, TypeError) as error:
        raise errors.RecordError(f"{folder / 'manifest.json'} is malformed") from error
    task = dataclasses.replace(Task.from_json(text, target), name=str(name))
    unscheduled_us = manifest.get("unscheduled_us")  # older manifests have none
    baseline = None
    if unscheduled_us is not None:
        ships = manifest.get("ships") == "unscheduled"
        baseline = protocol.Measurement(latency_us=float(unscheduled_us), checked=ships)
    return _result(task, stored, baseline)


def _result(
    task: Task, stored: list[records.Trial], baseline: protocol.Measurement | None
) -> results.TuneResult:
    trials = tuple(r for r in stored if not r.repeat)
    best = records.fastest(
        records.effective_measurements(stored), bool(stored) and stored[-1].repeat
    )
    fastest = None
    if best is not None:
        sketches = {sketch.index: sketch for sketch in task_search.sketches_of(task)}
        sketch = sketches.get(best.sketch_index)
        if sketch is None or sketch.key != best.sketch_key:
            raise errors.RecordError(
                f"{task.name}: the records are of other sketches than this version makes"
            )
        fastest = results.Best(best, sketch)
    return results.TuneResult(
        task=task,
        records=trials,
        repeats=tuple(r for r in stored if r.repeat),
        curve=results.network_curve(trials, {task.key: 1.0}),
        best_or_none=results.faster(task, fastest, baseline),
        tuned_or_none=fastest,
        unscheduled_us=None if baseline is None else baseline.latency_us,
        reason="stored",
        breakdown=pacing.Breakdown(),
    )


def _json(result: results.TuneResult, folder: pathlib.Path) -> dict[str, Any]:
    return {
        "name": result.task.name,
        "ships": "unscheduled" if result.ships_unscheduled else "tuned",
        **export.candidate(result.task, result.best),
        "artifact": str(folder),
    }
