"""`python -m costmodel collect`: workloads, pools and models wired to the collector."""

from __future__ import annotations

import argparse
import contextlib
import datetime
import importlib.metadata
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from costmodel.cli import inputs
from felix import errors
from felix.features.kind import FeatureKind
from felix.processes import child

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from costmodel import registry
    from costmodel.collect import collector as collecting
    from costmodel.collect import proposals
    from costmodel.data import dataset as datasets
    from felix.measure import local
    from felix.space.sketch import Sketch
    from felix.task import Task


#: Records that a collector which is killed may lose.
PART_ROWS = 16


def collect(options: argparse.Namespace, command: str) -> None:
    """Measure schedules into `options.out`, in one process or in several."""
    if options.jobs > 1:
        _collect_in_parallel(options)
        return
    progress = _collect_share(options)
    print(
        f"{progress.measured} of {progress.total} schedules in {options.out} "
        f"({progress.failed} failed, {progress.invalid} not applicable, {progress.lost} lost)"
    )


def _collect_in_parallel(options: argparse.Namespace) -> None:
    """Run one collector process for each share of the workloads; wait for all."""
    running = [
        child.start(
            *("costmodel", *_share_arguments(options, index)),
            environment=os.environ | _device_of(index, options.gpus),
            log=None,
            leads_session=False,
        )
        for index in range(options.jobs)
    ]
    failed = sum(process.wait() != 0 for process in running)
    if failed:
        raise errors.MeasureError(f"{failed} of {options.jobs} collectors failed")


def _device_of(index: int, gpus: int) -> dict[str, str]:
    """Environment that gives a collector one of several GPUs; nothing of one."""
    return {} if gpus == 1 else {"CUDA_VISIBLE_DEVICES": str(index % gpus)}


def _share_arguments(options: argparse.Namespace, index: int) -> list[str]:
    """The command line of one of `options.jobs` collectors: the same options, but its share."""
    arguments = [
        f"--{name.replace('_', '-')}={value}"
        for name, value in vars(options).items()
        if name not in ("command", "run", "jobs", "gpus", "part") and value is not None
    ]
    return ["collect", *arguments, f"--part={index}/{options.jobs}"]


def _collect_share(options: argparse.Namespace) -> collecting.Progress:
    """Measure this process' share of the workloads."""
    from costmodel.collect import collector as collecting
    from costmodel.data import dataset as datasets
    from costmodel.data import felix_bridge
    from felix.target import cpu

    target = felix_bridge.target_text(options.target)
    is_gpu = felix_bridge.is_gpu(target)
    kind = inputs.kind(options)
    if kind is FeatureKind.TEMPLATE and not is_gpu:
        raise errors.TargetError("templates are kernels for GPUs: give --target cuda or a tag")
    workloads = _workloads(options, target)
    writer = datasets.Writer(options.out, PART_ROWS)
    known = datasets.read(options.out).records
    writer.add_workloads(workloads)
    model = _model(options.model, target, kind) if is_gpu or options.model is not None else None
    builders = options.builders or cpu.available_cores()
    with contextlib.ExitStack() as stack, writer:
        environment = collecting.Environment(
            _opener(options, target, builders, stack, model if is_gpu else None),
            time.monotonic,
            lambda: datetime.datetime.now(datetime.UTC),
            None if model is None else _predictor(model),
            _collect_reporter(),
            _stored_features() if kind is FeatureKind.TEMPLATE else None,
        )
        settings = _collect_options(options, target, builders)
        return collecting.collect(environment, workloads, writer, known, settings)


def _collect_options(
    options: argparse.Namespace, target: str, builders: int
) -> proposals.CollectOptions:
    """What the options say; each builder has one candidate at work and one waiting.

    On a GPU a turn's candidates wait as well, so that building and opening workloads overlap.
    """
    from costmodel.collect import proposals
    from costmodel.data import felix_bridge

    is_gpu = felix_bridge.is_gpu(target)
    return proposals.CollectOptions(
        target=target,
        tvm=importlib.metadata.version("apache-tvm"),
        device=felix_bridge.device_text(target),
        per_workload=options.per_workload,
        seconds=options.seconds,
        seed=options.seed,
        near=options.near,
        turn=options.turn,
        in_flight=2 * builders + (options.turn if is_gpu else 0),
        guided=0.0 if is_gpu else 0.5,
        descend=options.descend if is_gpu else 0.0,
        tournament=options.tournament if is_gpu else 1,
    )


def _workloads(options: argparse.Namespace, target: str) -> list[datasets.Workload]:
    """This process' share of the workloads, in their order."""
    from costmodel.data import felix_bridge

    index, count = options.part
    is_gpu = felix_bridge.is_gpu(target)
    lines = _workload_lines(options, is_gpu)[index::count]
    if not lines:
        raise errors.WorkloadError("there are no workloads to measure")
    return [felix_bridge.workload(line, target) for line in lines]


def _workload_lines(options: argparse.Namespace, is_gpu: bool) -> list[str]:
    from costmodel.data import (
        workloads_cpu,
        workloads_few_channels,
        workloads_gpu,
        workloads_tensor_cores,
    )

    if options.workloads == "few-channels":
        return workloads_few_channels.lines()
    if options.workloads == "builtin":
        if inputs.kind(options) is FeatureKind.TEMPLATE:
            return workloads_tensor_cores.lines() + workloads_few_channels.lines()
        return workloads_gpu.lines() if is_gpu else workloads_cpu.builtin()
    try:
        return workloads_cpu.lines(Path(options.workloads).read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise errors.WorkloadError(f"cannot read {options.workloads}: {error}") from error


def _opener(
    options: argparse.Namespace,
    target: str,
    builders: int,
    stack: contextlib.ExitStack,
    model: registry.Predictor | None,
) -> collecting.OpenWorkload:
    """Opens workloads for measuring on this machine in one pool, which `stack` closes."""
    from costmodel.collect import descent, proposals
    from costmodel.data import felix_bridge

    pools: list[local.LocalPool] = []

    def open_workload(workload: datasets.Workload) -> proposals.OpenWorkload:
        task = felix_bridge.task_of(workload, target)
        if not pools:
            pools.append(stack.enter_context(felix_bridge.pool_for(task, builders)))
        view = pools[0].for_task(task)
        seed = int(workload.key, 16) ^ options.seed % 2**32
        chosen = proposals.some_of(_sketches(task, options), options.sketches, seed)
        sketches = felix_bridge.with_decisions(chosen)
        search = None
        if model is not None and sketches:
            search = descent.search(sketches, model, options.seed)
        return proposals.OpenWorkload(
            workload, sketches, view.submit, pools[0].timing_lock.shared, search
        )

    return open_workload


def _sketches(task: Task, options: argparse.Namespace) -> Sequence[Sketch]:
    """The sketches of a task of the kind to collect; says why a task has no templates."""
    from costmodel.data import felix_bridge

    if inputs.kind(options) is FeatureKind.TRACE:
        return felix_bridge.sketches_of(task)

    def say(line: str) -> None:
        print(f"collect: {line}", file=sys.stderr, flush=True)

    return felix_bridge.template_sketches_of(task, on_left_out=say)


def _stored_features() -> collecting.StoredFeatures:
    """What records of generated kernels say of their features."""
    import numpy as np

    from costmodel.collect import collector as collecting
    from costmodel.data import felix_bridge

    def of(candidate: proposals.Proposal) -> tuple[float, ...]:
        batch = np.array([candidate.decisions], dtype=np.int64)
        values = candidate.sketch.formulas.exact(batch).astype(np.float32)
        return tuple(values.ravel().tolist())

    return collecting.StoredFeatures(felix_bridge.features_version(FeatureKind.TEMPLATE), of)


def _model(
    path: str | None, target: str, kind: FeatureKind = FeatureKind.TRACE
) -> registry.Predictor:
    """A checkpoint, or what a tuning run for the target would start from."""
    import torch

    from costmodel import registry
    from costmodel.data import felix_bridge
    from costmodel.models import checkpoint

    torch.set_num_threads(1)
    version = felix_bridge.features_version(kind)
    if path is not None:
        return checkpoint.load(path, features_version=version)[0]
    names = felix_bridge.feature_names(kind)
    return registry.load_for(target, names, version, kind=kind)[0]


def _predictor(model: registry.Predictor) -> proposals.Predict:
    """A model as a function of sketch and decisions."""
    import numpy as np
    import torch

    from costmodel.data import felix_bridge
    from costmodel.training import train as training

    def predict(sketch: Sketch, batch: NDArray[np.int64]) -> NDArray[np.float32]:
        formulas = sketch.formulas
        names = tuple(formulas.names)
        if names != tuple(model.names):
            raise errors.CheckpointError("the model was trained on other features")
        rows = np.asarray(formulas.exact(batch), dtype=np.float32)
        mask = felix_bridge.mask_of(rows, names)
        predicted: NDArray[np.float32] = training.predict(
            model, torch.from_numpy(rows), torch.from_numpy(mask)
        ).numpy()
        return predicted

    return predict


def _collect_reporter(every_s: float = 5.0) -> Callable[[collecting.Progress], None]:
    last = time.monotonic()

    def report(progress: collecting.Progress) -> None:
        nonlocal last
        if time.monotonic() - last >= every_s:
            last = time.monotonic()
            print(
                f"collect: {progress.measured}/{progress.total} measured, "
                f"{progress.failed} failed, {progress.invalid} not applicable, "
                f"now {progress.workload}",
                file=sys.stderr,
                flush=True,
            )

    return report
