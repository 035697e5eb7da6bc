"""The network of a job: built from the best program of each task, checked, written as a zip.

The zip has what `OptimizedNetwork.export` writes, and runs without Felix. The entry `job` of its
manifest has what the user submitted and how the run ended, as in the job's other artifact.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import pathlib
import tempfile
from collections.abc import Callable, Sequence

from felix import errors, files, frontend, names
from felix.known_results import store
from felix.network import elsewhere, groups, imported, optimize, outcomes, report
from felix.network.contenders import contest, shipping
from felix.tuning import results
from server.parsing import grouping
from server.store import networks
from server.tuner import engine
from server.tuner.artifacts import job_artifact


def write(
    result: results.NetworkResult,
    claimed: engine.JobAccess,
    path: pathlib.Path,
    runs_here: bool,
) -> networks.Built:
    """Build the network and write the zip to `path`; what the network is.

    Args:
        result: of the run.
        claimed: the job; it has the ONNX file.
        path: of the zip; scratch files go beside it.
        runs_here: whether this machine has the device; the network is not checked or timed
            otherwise.

    Raises:
        WorkloadError: the file cannot be read.
        TuningError: the network's outputs differ from those of its build without tuning.
        FelixError: it cannot be compiled or written here.
    """
    job = claimed.job
    claimed.begin_step("reading the model")
    network, every = _read(result, claimed, None if runs_here else "cpu")
    with tempfile.TemporaryDirectory(dir=path.parent) as scratch:
        folder = pathlib.Path(scratch, f"felix-job-{job.id}-network")
        write_folder = _run_and_write if runs_here else elsewhere.write
        if runs_here and job.workload.get("pytorch"):
            compared = store.Store(pathlib.Path(scratch, "compared.sqlite"))
            write_folder = functools.partial(_run_and_write, compared=compared)
        summary = write_folder(network, every, _outcomes(result), folder, claimed.begin_step)
        manifest = json.loads((folder / "manifest.json").read_text())
        manifest["job"] = job_artifact.describe(job, result)
        text = json.dumps(manifest, indent=2) + "\n"
        files.write_atomically(folder / "manifest.json", text)
        job_artifact.write_zip(folder, path)
    return _built(summary, result)


def _read(
    result: results.NetworkResult, claimed: engine.JobAccess, drawn_on: str | None
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


def _run_and_write(
    network: imported.Network,
    every: Sequence[groups.Group],
    gathered: outcomes.Outcomes,
    folder: pathlib.Path,
    begin_step: Callable[[str], None],
    compared: store.Store | None = None,
) -> report.Report:
    """Build, check, time and write; as `elsewhere.write`.

    Args:
        compared: where comparisons with PyTorch's operators are stored; None: they do not contend.
    """
    contenders = contest.Contest(network, compared)
    fast = optimize.from_outcomes(network, every, gathered, contenders, begin_step)
    if fast.report.timing is None:
        raise errors.TuningError("the network was not timed")
    begin_step("writing the network")
    fast.export(folder)
    return fast.report


def _outcomes(result: results.NetworkResult) -> outcomes.Outcomes:
    """What the run says of the tasks; nothing else is known of them here."""
    by_key = outcomes.of_results(result.results)
    reason = "stopped" if result.reason == "interrupted" else result.reason
    return outcomes.Outcomes(by_key, frozenset(), reason, result.breakdown.total_s)


def _built(summary: report.Report, result: results.NetworkResult) -> networks.Built:
    numbers = {each.task.key: number for number, each in enumerate(result.results)}
    return networks.Built(
        call_us=None if summary.timing is None else summary.timing.network_us,
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
