"""The programs and models that nobody here chose (`tests.corpus`), all of them.

    python -m benchmarks.corpus [programs] [--rows 3] [--jobs 2]
    python -m benchmarks.corpus networks [--rows 3] [--jobs 2]
    python -m benchmarks.corpus tuned --target llvm [--trials-per-task 8] [--keep]
    python -m benchmarks.corpus times

*programs* compares schedules of each program with TVM's, *networks* those of the tasks of models,
PyTorch's own (`torch:NAME`) and their ONNX exports. Each is checked in a process of its own, so
that a crash or an endless run of TVM is one line of the table. At the end the programs that are
refused although MetaSchedule alone makes a design space of them are named. *tuned* tunes every
task of every model in one run of `felix.tune`, equal ones once; with --keep the models that the
results file has and this run has not stay in it. *times* are CPU seconds in which the sketches
and formulas of a task are made with an empty cache: what `felix.tune` does before it searches.

Exits with 1 if anything but modelled or refused programs is among them, if of the whole corpus
less than 95 % of what MetaSchedule alone makes a space of is modelled, or if a task ends in
anything but a result or a reason why it was left out.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import functools
import json
import logging
import multiprocessing
import os
import pathlib
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent import futures
from typing import Any

import felix
from benchmarks.support import common, corpus_table
from felix import errors, target, workloads
from felix.space import sketch as sketching
from felix.task import Task
from felix.tuning import results
from tests.corpus import networks, outcome

#: Of what MetaSchedule alone makes a space of, the share that has to be modelled.
LEAST = 0.95
#: Seconds that a case may take.
LIMIT_S = 600
#: Whose formulas are made, besides the corpus and the small `workloads.CHECK_SUITE`.
SHAPES = (
    "gemm:1024,1024,1024 gemm:1,4096,4096 gemm:197,1021,509 gemm:128,3072,768 "
    "conv2d:1,56,56,64,64,3,padding=1 conv2d:1,7,7,512,512,3,padding=1,epilogue=bias+relu "
    "conv3d:1,16,16,16,32,32,3,padding=1 depthwise_conv2d:1,112,112,32,3,padding=1 "
    "conv_transpose2d:1,8,8,128,64 softmax:1536x128 layer_norm:8192x768 reduce:64x131072,axes=1"
).split()

#: Name and target.
Case = tuple[str, str]
Check = Callable[[str, str], outcome.Outcome]


def main() -> int:
    """Check what the command line names."""
    parser = argparse.ArgumentParser(description=__doc__)
    whats = ["programs", "networks", "tuned", "times"]
    parser.add_argument("what", choices=whats, nargs="?", default="programs")
    parser.add_argument("--jobs", type=int, default=2, help="processes at a time")
    parser.add_argument("--rows", type=int, default=3, help="rows compared of each structure")
    parser.add_argument("--trials-per-task", type=int, default=8)
    parser.add_argument("--only", default="", help="names that contain this")
    parser.add_argument("--target", choices=outcome.TARGETS)
    parser.add_argument("--out", type=pathlib.Path, help="JSON of all results")
    parser.add_argument("--keep", action="store_true", help="keep other models of that file")
    options = parser.parse_args()
    if options.what == "tuned":
        return _tune(options)
    return _time(options) if options.what == "times" else _compare(options)


def _chosen(names: Sequence[str], options: argparse.Namespace) -> list[Case]:
    targets = [options.target] if options.target else outcome.TARGETS
    return [(name, target) for name in names if options.only in name for target in targets]


# Schedules beside TVM's.


def _compare(options: argparse.Namespace) -> int:
    is_models = options.what == "networks"
    cases = _chosen(networks.names() if is_models else list(outcome.PROGRAMS), options)
    check = functools.partial(networks.of if is_models else outcome.of, rows=options.rows)
    checked = []
    for each in outcomes(cases, options.jobs, check):
        checked.append(each)
        where = f"{each.target:4} {each.name:26} {each.rows:3} {each.invalid:3}"
        print(f"{each.kind:9} {where} {each.last_line}", flush=True)
    counts = collections.Counter(each.kind for each in checked)
    print(", ".join(f"{n} {kind}" for kind, n in counts.items()))
    others = [(r.name, r.target) for r in checked if r.kind is not outcome.Kind.MODELLED]
    stock = () if is_models else outcomes(others, options.jobs, outcome.of_stock)
    missing = [(r.name, r.target) for r in stock if r.kind is outcome.Kind.MODELLED]
    found = share(checked, missing)
    print(f"{found:.1%} of those that MetaSchedule alone makes a space of are modelled; not:")
    print(", ".join(f"{name} ({target})" for name, target in missing) or "none")
    if options.out is not None:
        common.write(options.out, common.header("corpus") | {"programs": rows(checked, missing)})
    is_wrong = bool(counts.keys() & {outcome.Kind.ERROR, outcome.Kind.MISMATCH})
    return int(is_wrong or (found < LEAST and not options.only))


def outcomes(cases: Sequence[Case], jobs: int, check: Check) -> Iterator[outcome.Outcome]:
    """The outcome of each case, in order, each of a process of its own."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([outcome.__name__])

    def of(case: Case) -> outcome.Outcome:
        pipe, theirs = context.Pipe(duplex=False)
        process = context.Process(target=_send, args=(theirs, check, case), daemon=True)
        process.start()
        theirs.close()
        try:
            if pipe.poll(LIMIT_S):
                result: outcome.Outcome = pipe.recv()
                return result
            message = f"took over {LIMIT_S} s"
        except EOFError:
            process.join()
            message = f"the process ended with status {process.exitcode}"
        finally:
            process.kill()
            process.join()
        return outcome.Outcome(*case, outcome.Kind.ERROR, message=message)

    with futures.ThreadPoolExecutor(jobs) as threads:
        yield from threads.map(of, cases)


def _send(pipe: Any, check: Check, case: Case) -> None:
    pipe.send(check(*case))


def share(checked: Sequence[outcome.Outcome], missing: Sequence[Case]) -> float:
    """The share of the programs that MetaSchedule alone makes a space of that is modelled."""
    modelled = sum(result.kind is outcome.Kind.MODELLED for result in checked)
    return modelled / max(1, modelled + len(missing))


def rows(checked: Sequence[outcome.Outcome], missing: Sequence[Case]) -> list[dict[str, Any]]:
    """Of a results file: `missing` of a program says whether MetaSchedule makes a space of it."""
    programs = []
    for each in checked:
        fields = dataclasses.asdict(each) | {"kind": str(each.kind)}
        del fields["message"]
        if each.kind is not outcome.Kind.MODELLED:
            is_missing = (each.name, each.target) in missing
            fields |= {"reason": each.last_line, "missing": is_missing}
        programs.append(fields)
    return programs


# Models, tuned.


def _tune(options: argparse.Namespace) -> int:
    former = json.loads(options.out.read_text()) if options.keep else None
    started = time.monotonic()
    full = options.target or "llvm"
    read = [networks.read(name, full) for name in networks.names() if options.only in name]
    tasks = list({task.key: task for model in read for task in model.tasks}.values())
    print(f"{len(tasks)} different tasks of {len(read)} models", flush=True)
    tuned = felix.tune(tasks, trials=options.trials_per_task * len(tasks))
    by_key = {each.task.key: each for each in tuned.results}
    data = common.header("corpus_tuned") | {
        "target": full,
        "device": target.hardware(full).name,
        "trials_per_task": options.trials_per_task,
        "wall_s": time.monotonic() - started,
        "reason": tuned.reason,
        "models": [tuned_row(model, by_key) for model in read],
    }
    for each in data["models"]:
        for kind in ("refused", "left_out", "failed"):
            if each[kind]:
                print(f"{each['name']} {kind}: {each[kind]}")
    print(corpus_table.render_tuned(data), f"\n\nended by {tuned.reason}")
    if options.out is not None:
        common.write(options.out, data if former is None else joined(former, data))
    is_whole = tuned.reason in ("trials", "exhausted")
    return int(not is_whole or any(each["failed"] for each in data["models"]))


def tuned_row(model: networks.Model, by_key: Mapping[str, results.TuneResult]) -> dict[str, Any]:
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
    later = {name: data[name] for name in ("command", "date", "commit", "reason")}
    return {
        **former,
        "models": list(({each["name"]: each for each in former["models"]} | own).values()),
        "wall_s": former["wall_s"] + data["wall_s"],
        "later": [*former.get("later", ()), later | {"models": list(own)}],
    }


# Times.


def _time(options: argparse.Namespace) -> int:
    cases = _chosen(list(_makers()), options)
    timings = sorted((t for t in map(_timing, cases) if t is not None), key=lambda t: t["cpu_s"])
    for each in timings[-12:]:
        print(f"{each['cpu_s']:6.2f} s {each['target']:4} {each['name']}")
    data = common.header("formula_time") | {"timings": timings}
    print(corpus_table.render_times(data))
    if options.out is not None:
        common.write(options.out, data)
    return 0


def _makers() -> dict[str, Callable[[str], Task]]:
    """Name -> the task of a target."""
    shapes = {text: functools.partial(workloads.parse, text) for text in SHAPES}
    corpus = {
        name: lambda target, name=name: outcome.task(outcome.PROGRAMS[name](), target, name)
        for name in outcome.PROGRAMS
    }
    return {**corpus, **workloads.CHECK_SUITE, **shapes}


def _timing(case: Case) -> dict[str, Any] | None:
    """The time of one program; none where it is refused."""
    name, target = case
    with tempfile.TemporaryDirectory() as cache:
        os.environ["FELIX_CACHE_DIR"] = cache
        try:
            task = _makers()[name](target)
            start_s = time.process_time()
            sketches = sketching.trace_sketches(task)
        except errors.FelixError:
            return None
        for sketch in sketches:
            try:
                sketch.sample(1, seed=1, max_structures=1)
            except errors.FelixError:
                logging.getLogger(__name__).debug("a sketch without legal schedules")
        cpu_s = time.process_time() - start_s
    return {"cpu_s": cpu_s, "name": name, "target": target, "n_sketches": len(sketches)}


if __name__ == "__main__":
    sys.exit(main())
