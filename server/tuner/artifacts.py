"""The artifacts of a job: one zip about its best schedules, one of the network built from them.

A job of one task has that task's artifact (`felix.artifact`). A job of several has one folder a
task, a manifest of all, the convergence of the whole, and a `run.py` that checks and times each.
The entry `job` of the manifest has what the user submitted and how the run ended; no key and no
address is part of it.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import pathlib
import shutil
import tempfile
import time
import zipfile
from collections.abc import Sequence
from typing import Any

from felix import errors, files, frontend, names
from felix.artifact import convergence, export
from felix.cli import report
from felix.database import records, store
from felix.network import deadline as deadlines
from felix.network import elsewhere, groups, imported, optimize, optimized, outcomes
from felix.network import report as network_report
from felix.network.contenders import alone, contest, shipping
from felix.tuning import results
from server.parsing import grouping
from server.store import artifacts, networks, rows
from server.tuner import artifact_run_script, job_access
from server.tuner import budget as budgets

#: Code for viewers is cut after so many characters.
MAX_CODE = 1 << 20

#: The generated source of a task, whichever there is.
SOURCES = ("source/kernel.cu", "source/kernel.ll")

#: The assembly of a task, whichever there is: the CPU's, or PTX of a GPU.
ASSEMBLIES = ("source/kernel.s", "source/kernel.ptx")

#: Why something is left out that the seconds of a job were too few for.
LEFT_OUT = "there was no time: give the job more seconds"


def write(
    result: results.NetworkResult,
    claimed: job_access.JobAccess,
    path: pathlib.Path,
    budget: budgets.Budget,
) -> list[artifacts.Code]:
    """Write the zip to `path`; the code of each task that is in it.

    Args:
        result: of the run.
        claimed: the job.
        path: of the zip; scratch files go beside it.
        budget: of the job: tasks that there is no time for are left out, the hottest one last.

    Raises:
        LeaseLost
        OutputError: there is no room for it.
    """
    job = claimed.job
    claimed.begin_step("making the artifact")
    with tempfile.TemporaryDirectory(dir=path.parent) as scratch:
        folder = pathlib.Path(scratch, f"felix-job-{job.id}")
        if len(result.results) == 1:
            where = [folder]
            export.export(result.results[0], folder, about={"job": describe(job, result)})
        else:
            where = _several(result, claimed, folder, budget)
        write_zip(folder, path)
        return [
            _code(number, place)
            for number, place in enumerate(where)
            if (place / "manifest.json").exists()
        ]


def describe(job: rows.Job, result: results.NetworkResult) -> dict[str, Any]:
    """What the user submitted and how the run ended."""
    return artifacts.description(job) | {
        "reason": result.reason,
        "latency_us": result.latency_us,
        "unscheduled_us": _unscheduled(result),
    }


def _several(
    result: results.NetworkResult,
    claimed: job_access.JobAccess,
    folder: pathlib.Path,
    budget: budgets.Budget,
) -> list[pathlib.Path]:
    folder.mkdir()
    where = results.folders(folder, result.results)
    written = _write_tasks(result, where, claimed, budget)
    claimed.begin_step("making the artifact")
    if result.curve:
        title = f"{claimed.job.name}: {report.duration(result.latency_us)}"
        convergence.draw(
            convergence.of_trials(result.curve), title, folder / convergence.FILE_NAME
        )
    shutil.copyfile(artifact_run_script.__file__, folder / "run.py")
    manifest = {
        "felix_bundle": 1,
        "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "versions": records.versions(),
        "job": describe(claimed.job, result),
        "tasks": [
            _entry(each, place.name if number in written else None)
            for number, (each, place) in enumerate(zip(result.results, where, strict=True))
        ],
        "files": {
            each.relative_to(folder).as_posix(): hashlib.sha256(each.read_bytes()).hexdigest()
            for each in sorted(folder.rglob("*"))
            if each.is_file()
        },
    }
    (folder / "manifest.json").write_text(json.dumps(manifest, indent=2) + "\n")
    return where


def _write_tasks(
    result: results.NetworkResult,
    where: Sequence[pathlib.Path],
    claimed: job_access.JobAccess,
    budget: budgets.Budget,
) -> set[int]:
    """Write the artifacts of tasks, the hottest first, while there is time; whose were written."""
    total_us = {
        number: each.task.weight * each.best_or_none.latency_us
        for number, each in enumerate(result.results)
        if each.best_or_none is not None
    }
    written: set[int] = set()
    for number in sorted(total_us, key=lambda number: total_us[number], reverse=True):
        if written and not budget.can_write():
            break
        claimed.begin_step(f"making the artifact of task {where[number].name}")
        result.results[number].export(where[number])
        written.add(number)
    if len(written) < len(total_us):
        claimed.warn(
            f"{len(total_us) - len(written)} of {len(total_us)} tasks are not in the artifact: "
            f"{LEFT_OUT}"
        )
    return written


def _entry(result: results.TuneResult, folder: str | None) -> dict[str, Any]:
    """What the manifest says of a task whose artifact is in a folder; None: it has none."""
    best = result.best_or_none
    return {
        "name": result.task.name,
        "weight": result.task.weight,
        "flops": result.task.flops,
        "folder": folder,
        "latency_us": None if best is None else best.latency_us,
        "ships": "unscheduled" if result.ships_unscheduled else "tuned",
        "unscheduled_us": result.unscheduled_us,
        "skipped": result.skipped,
        "left_out": LEFT_OUT if best is not None and folder is None else None,
    }


def _unscheduled(result: results.NetworkResult) -> float | None:
    """Of the tasks that were not skipped, as `NetworkResult.latency_us`."""
    total = 0.0
    for task_result in result.results:
        if task_result.skipped is not None:
            continue
        if task_result.unscheduled_us is None:
            return None
        total += task_result.task.weight * task_result.unscheduled_us
    return total


def _code(number: int, folder: pathlib.Path) -> artifacts.Code:
    return artifacts.Code(
        task=number,
        schedule=_first_text(folder, ("schedule.py",)),  # a generated kernel has none
        source=_first_text(folder, SOURCES),
        assembly=_first_text(folder, ASSEMBLIES),
    )


def _first_text(folder: pathlib.Path, names: Sequence[str]) -> str:
    """The text of the first of these files that there is; empty without one."""
    for path in (folder / name for name in names):
        if path.exists():
            text = path.read_text()
            return text if len(text) <= MAX_CODE else text[:MAX_CODE] + "\n... cut here\n"
    return ""


def write_zip(folder: pathlib.Path, path: pathlib.Path) -> None:
    """Write a folder as a zip file; no file has a time stamp: equal contents make equal zips.

    Tensors are stored as they are: floats hardly become smaller, and large networks take long.
    """
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(folder.rglob("*")):
            if file.is_file():
                name = file.relative_to(folder.parent).as_posix()
                info = zipfile.ZipInfo(name)
                info.external_attr = (0o755 if file.suffix == ".so" else 0o644) << 16
                is_plain = file.suffix == ".bin"
                method = zipfile.ZIP_STORED if is_plain else zipfile.ZIP_DEFLATED
                archive.writestr(info, file.read_bytes(), method)


def write_network(
    result: results.NetworkResult,
    claimed: job_access.JobAccess,
    path: pathlib.Path,
    budget: budgets.Budget,
    runs_here: bool,
) -> networks.Built:
    """Build the network and write the zip to `path`; what the network is.

    Args:
        result: of the run.
        claimed: the job; it has the ONNX file.
        path: of the zip; scratch files go beside it.
        budget: of the job.
        runs_here: whether this machine has the device; the network is not checked or timed
            otherwise.

    Raises:
        WorkloadError: the file cannot be read.
        TuningError: the network's outputs differ from those of its judge, or there is no time to
            build it.
        FelixError: it cannot be compiled or written here.
    """
    job = claimed.job
    claimed.begin_step("reading the model")
    network, every = _read_network(result, claimed, None if runs_here else "cpu")
    if not budget.can_build():
        raise errors.TuningError(f"the network is not built: {LEFT_OUT}")
    with tempfile.TemporaryDirectory(dir=path.parent) as scratch:
        folder = pathlib.Path(scratch, f"felix-job-{job.id}-network")
        gathered = _outcomes(result)
        if runs_here:
            compared = None
            if job.workload.get("pytorch"):
                compared = store.Store(pathlib.Path(scratch, "compared.sqlite"))
            fast = _built_here(network, every, gathered, claimed, budget.deadline, compared)
            claimed.begin_step("writing the network")
            fast.export(folder)
            summary = fast.report
        else:
            summary = elsewhere.write(network, every, gathered, folder, claimed.begin_step)
        manifest = json.loads((folder / "manifest.json").read_text())
        manifest["job"] = describe(job, result)
        text = json.dumps(manifest, indent=2) + "\n"
        files.write_atomically(folder / "manifest.json", text)
        write_zip(folder, path)
    return _built(summary, result)


def _read_network(
    result: results.NetworkResult, claimed: job_access.JobAccess, drawn_on: str | None
) -> tuple[imported.Network, list[groups.Group]]:
    """The network in the groups that were tuned: an earlier version's parser had fixed rules."""
    workload, full = claimed.job.workload, result.results[0].task.target
    tuned = {each.task.key for each in result.results}
    network = dataclasses.replace(
        imported.read(
            claimed.model_file(),
            (),
            {},
            full,
            workload.get("shapes") or None,
            grouping.of(full),
            drawn_on,
            workload.get("values"),
        ),
        name=pathlib.PurePath(claimed.job.op).stem,
        allow_tf32=workload.get("allow_tf32", False),
    )
    for other in (None, frontend.Grouping()):
        lowered = (
            network.lowered if other is None else frontend.lowered(network.imported, full, other)
        )
        every = groups.of(lowered, full, allow_tf32=network.allow_tf32)
        if {task.key for task in groups.tasks(every)} <= tuned:
            return dataclasses.replace(network, lowered=lowered), every
    raise errors.TuningError(
        "the model's programs are not those that were tuned, which another version of Felix read: "
        "submit it again"
    )


def _built_here(
    network: imported.Network,
    every: Sequence[groups.Group],
    gathered: outcomes.Outcomes,
    claimed: job_access.JobAccess,
    deadline: deadlines.Deadline,
    compared: store.Store | None,
) -> optimized.OptimizedNetwork:
    """The network, built, checked and timed.

    Args:
        network, every, gathered, deadline: as `optimize.from_outcomes` takes them.
        claimed: the job.
        compared: where comparisons with PyTorch's operators are stored; None: they do not contend.
    """
    alone_us: contest.Alone = {}
    if compared is not None:
        claimed.begin_step("timing PyTorch's operators")
        alone_us = alone.latencies_us(every, compared, deadline.timing())
    contenders = contest.Contest(network, compared, alone_us)
    return optimize.from_outcomes(
        network, every, gathered, contenders, claimed.begin_step, deadline
    )


def _outcomes(result: results.NetworkResult) -> outcomes.Outcomes:
    """What the run says of the tasks; nothing else is known of them here."""
    by_key = outcomes.of_results(result.results)
    reason = "stopped" if result.reason == "interrupted" else result.reason
    return outcomes.Outcomes(by_key, frozenset(), reason, result.breakdown.total_s)


def _built(summary: network_report.Report, result: results.NetworkResult) -> networks.Built:
    numbers = {each.task.key: number for number, each in enumerate(result.results)}
    return networks.Built(
        call_us=summary.call_us,
        max_error=summary.max_error,
        groups=tuple(_group(each, numbers) for each in summary.groups),
    )


def _group(shipped: shipping.Shipped, numbers: dict[str, int]) -> networks.Group:
    group, latencies_us = shipped.group, shipped.latencies_us
    return networks.Group(
        name=names.derived(group.name),
        calls=group.calls,
        dtypes=group.dtypes,
        task=None if group.task is None else numbers.get(group.task.key),
        untuned=None if shipped.untuned is None else names.derived(shipped.untuned),
        felix_us=latencies_us.get(shipping.Contender.FELIX),
        tvm_us=latencies_us.get(shipping.Contender.TVM),
        pytorch_us=latencies_us.get(shipping.Contender.PYTORCH),
        ships=shipped.contender.value,
        reason=names.derived(shipped.reason),
    )
