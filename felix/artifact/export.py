"""The artifact: a folder with everything about the best schedule of one task.

manifest.json      versions, device, task, best decisions, latencies, sha256 of each file
kernel.so          the compiled library (kernel.ll, LLVM IR, where there is no linker)
run.py             loads the library, checks it against TVM and numpy, times it
calm.py            tells `run.py` when the cores are at full speed (`felix.runner.cpu.contention`)
openmp.py, launch.ll  of a task for a CPU: let the kernel run on PyTorch's threads
oracle.py          the numpy reference, where the program is plain (`felix.tir.to_numpy`)
workload.json      the unscheduled program as TVM reads it
schedule.py        TVMScript of the scheduled program
source/            generated code: LLVM IR and assembly, or CUDA and PTX
database/          MetaSchedule JSON database that stock TVM applies
records.jsonl      all measurements of the task
convergence.csv    trial, elapsed seconds, best latency (.svg: the picture, with matplotlib)

Where a template generated the winner, there is no schedule and no database; `generated` says what
there is instead of the library.
"""

from __future__ import annotations

import csv
import dataclasses
import hashlib
import importlib
import json
import os
import pathlib
import platform
import re
import shutil
import tempfile
import time
import types
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import tvm

from felix import errors, files, target
from felix.artifact import convergence, generated, run_script
from felix.builder import build, task_program
from felix.builder.cuda import build as cuda_build
from felix.database import metaschedule_files, records
from felix.runner.cpu import contention, openmp
from felix.runner.cuda import nvrtc
from felix.tir import to_numpy

if TYPE_CHECKING:
    from felix.task import Task
    from felix.templates.generated import GeneratedProgram

#: Version of the folder's layout.
FORMAT = 1

#: Seed of the inputs `run.py` draws.
_SEED = 0


class Best(Protocol):
    """What ships of a result; `sketch_index` None: the unscheduled program.

    `generated` is the program of a template, which has no `schedule`; `template_text` says which.
    """

    @property
    def latency_us(self) -> float: ...
    @property
    def generated(self) -> GeneratedProgram | None: ...
    @property
    def template_text(self) -> str | None: ...
    @property
    def mod(self) -> tvm.IRModule: ...
    @property
    def schedule(self) -> tvm.s_tir.Schedule: ...
    @property
    def sketch_index(self) -> int | None: ...
    @property
    def variant(self) -> str: ...
    @property
    def decisions(self) -> Sequence[int]: ...


class Result(Protocol):
    """What a tuning result must have; `curve` holds (trial, elapsed_s, best_latency_us)."""

    @property
    def task(self) -> Task: ...
    @property
    def best(self) -> Best: ...
    @property
    def curve(self) -> Sequence[tuple[int, float, float]]: ...
    @property
    def repeats(self) -> Sequence[records.Trial]: ...
    @property
    def records(self) -> Sequence[records.Trial]: ...
    @property
    def unscheduled_us(self) -> float | None: ...
    @property
    def tuned_or_none(self) -> Best | None: ...
    def unscheduled_note(self) -> str | None: ...


def check_writable(folder: str | os.PathLike[str]) -> pathlib.Path:
    """Make the folder and try to write in it: to be called before tuning.

    Raises:
        OutputError: it cannot be made or written.
    """
    folder = pathlib.Path(folder)
    with errors.writing(f"to {folder}"):
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    return folder


def export(
    result: Result, folder: str | os.PathLike[str], *, about: Mapping[str, Any] | None = None
) -> pathlib.Path:
    """Write the bundle; files of an earlier bundle in the folder are replaced.

    Args:
        result: a tuning result with a best schedule.
        folder: where to; made if missing.
        about: further entries of the manifest, e.g. who asked for it.

    Raises:
        OutputError: the folder cannot be written.
    """
    folder = check_writable(folder)
    with errors.writing(f"to {folder}"):
        _clear(folder)
        notes = [note for note in (result.unscheduled_note(),) if note is not None]
        library = _library(result, folder, notes)
        _program(result, folder, notes)
        _history(result, folder, notes)
        (folder / "run.py").write_text(standalone(run_script))
        if result.best.generated is None:
            shutil.copyfile(contention.__file__, folder / "calm.py")
        if result.task.target.kind.name == "llvm":
            openmp.copy(folder)
        manifest = _manifest(result) | dict(about or {})
        if result.best.generated is not None:
            manifest["kind"] = "generated"
        manifest |= {"library": library, "notes": notes, "files": _hashes(folder)}
        files.write_atomically(folder / "manifest.json", json.dumps(manifest, indent=2) + "\n")
    return folder


def standalone(script: types.ModuleType) -> str:
    """The text of a `run.py`, with those of the modules of Felix that it imports."""

    def text_of(imported: re.Match[str]) -> str:
        text = _text(importlib.import_module(imported[1]))
        return text.split("from __future__ import annotations\n", 1)[1]

    imports = r"from (felix[\w.]+) import (?:\(.*?\)|[^(]*?)\n"
    return re.sub(imports, text_of, _text(script), flags=re.S)


def _text(module: types.ModuleType) -> str:
    return pathlib.Path(str(module.__file__)).read_text()


def _clear(folder: pathlib.Path) -> None:
    """Remove what an earlier export wrote, and nothing else."""
    own = """
        kernel.so kernel.ll run.py calm.py openmp.py launch.ll oracle.py workload.json
        schedule.py manifest.json records.jsonl convergence.csv convergence.svg
        source/kernel.ll source/kernel.s source/kernel.cu source/kernel.ptx source/host.ll
        """.split()
    tables = (f"database/{name}" for name in metaschedule_files.FILES)
    for name in (*own, *generated.FILES, *tables):
        (folder / name).unlink(missing_ok=True)


def _library(result: Result, folder: pathlib.Path, notes: list[str]) -> str | None:
    """Compile the best program and write its code; the library's file name."""
    if result.best.generated is not None:
        return generated.write(result.best.generated, result.task, folder, notes)
    mod, built_for = result.best.schedule.mod, result.task.target
    source = folder / "source"
    source.mkdir(exist_ok=True)
    try:
        module = build.module(mod, built_for)
    except errors.MeasureError as error:
        notes.append(f"no library: {error}")
        return None
    if len(module.imports):
        (source / "host.ll").write_text(module.inspect_source("ll"))
        code = str(module.imports[0].inspect_source())
        (source / "kernel.cu").write_text(code)
        try:
            (source / "kernel.ptx").write_text(cuda_build.ptx(code, built_for))
        except nvrtc.CompileError as error:
            notes.append(f"no PTX: {str(error).splitlines()[0]}")
    else:
        (source / "kernel.ll").write_text(module.inspect_source("ll"))
        (source / "kernel.s").write_text(module.inspect_source("s"))
    try:
        path = build.linked(module, built_for, str(folder / "kernel"))
    except (RuntimeError, ValueError) as error:
        notes.append(f"no library: {str(error).strip().splitlines()[-1]}")
        return None
    if path.endswith(".ll"):
        notes.append("no linker was found: the library is LLVM IR and compiles when loaded")
    return pathlib.Path(path).name


def _program(result: Result, folder: pathlib.Path, notes: list[str]) -> None:
    """The program before and after scheduling, in every form."""
    task, best = result.task, result.best
    (folder / "workload.json").write_text(tvm.ir.save_json(task.mod))
    numpy_source = to_numpy.source(task.mod)
    if numpy_source is None:
        notes.append("no oracle.py: the program has no plain numpy form")
    else:
        (folder / "oracle.py").write_text(numpy_source)
    if best.generated is not None:
        notes.append(
            f"a template generated the kernel, so there is no schedule and no database "
            f"of TVM: {best.template_text}"
        )
        return
    (folder / "schedule.py").write_text(_schedule_script(best.schedule.mod, task.target))
    entry = metaschedule_files.DatabaseEntry(
        mod=best.mod,
        trace=best.schedule.trace,
        latencies_us=(best.latency_us,),
        target=task.target,
    )
    metaschedule_files.export_database(folder / "database", [entry])


def _schedule_script(mod: tvm.IRModule, built_for: tvm.target.Target) -> str:
    """TVMScript of what was compiled, and under what it is built as it was measured."""
    config, script = build.pass_config(built_for), build.prepared(mod, built_for).script()
    if config:
        context = f"# Build it within tvm.transform.PassContext(config={config!r})."
        return f"{context}\n{script}\n"
    return f"{script}\n"


def _history(result: Result, folder: pathlib.Path, notes: list[str]) -> None:
    """Records, convergence data and its picture."""
    with records.Writer(folder / "records.jsonl") as writer:
        for record in (*result.records, *result.repeats):
            writer.append(record)
    with open(folder / "convergence.csv", "w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["trial", "elapsed_s", "best_latency_us"])
        rows.writerows(result.curve)
    title = f"{result.task.name}: {result.best.latency_us:.2f} us"
    path = folder / convergence.FILE_NAME
    if not convergence.draw(convergence.of_trials(result.curve), title, path, "best latency (us)"):
        notes.append("no convergence.svg: matplotlib is not installed")


def _manifest(result: Result) -> dict[str, Any]:
    task, best = result.task, result.best
    args = task_program.arguments(task.mod)
    return {
        "felix_artifact": FORMAT,
        **made_by_and_for(task.target),
        "task": {
            "name": task.name,
            "key": task.key,
            "weight": task.weight,
            "flops": task.flops,
            "min_bytes": task.min_bytes,
        },
        "ships": "unscheduled" if best.sketch_index is None else "tuned",
        "best": candidate(task, best),
        "tuned": None if result.tuned_or_none is None else candidate(task, result.tuned_or_none),
        "unscheduled_us": result.unscheduled_us,
        "trials": len(result.records),
        "arguments": [dataclasses.asdict(arg) for arg in args],
        "tolerance": task_program.tolerance(task.mod),
        "pass_config": build.pass_config(task.target) if best.generated is None else {},
        "seed": _SEED,
    }


def made_by_and_for(built_for: tvm.target.Target) -> dict[str, Any]:
    """When and by what an artifact is made, and for which device, as its manifest says it."""
    return {
        "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "versions": records.versions(),
        "platform": platform.platform(),
        "device": target.hardware(built_for).name,
        "target": json.loads(target.describe(built_for)),
    }


def candidate(task: Task, best: Best) -> dict[str, Any]:
    """What was found of a task, and how fast it is, as JSON."""
    return {
        "latency_us": best.latency_us,
        "gflops": task.flops / best.latency_us / 1e3,
        "sketch_index": best.sketch_index,
        "variant": best.variant,
        "decisions": [int(value) for value in best.decisions],
    }


def _hashes(folder: pathlib.Path) -> dict[str, str]:
    """sha256 of every file of the bundle, by path inside it; a session's lock is no part of it."""
    subfolders = ("source", "database")
    paths = [p for p in folder.iterdir() if p.is_file() and not p.name.startswith(".")]
    paths += [path for name in subfolders for path in (folder / name).glob("*")]
    return {path.relative_to(folder).as_posix(): sha256(path) for path in sorted(paths)}


def sha256(path: pathlib.Path) -> str:
    """The hash of a file, in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
