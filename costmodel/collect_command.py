"""`python -m costmodel collect`: workloads, pools and models wired to `costmodel.collect`.

Reads `builtin`, `featurize`, `descending`, the registry; fed by `__main__`.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from felix import errors

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from costmodel import checkpoint
    from costmodel import collect as collecting
    from costmodel import dataset as data


def collect(options: argparse.Namespace, command: str) -> None:
    """Measure schedules into `options.out`."""
    import importlib.metadata

    from costmodel import builtin, featurize
    from costmodel import collect as collecting
    from costmodel import dataset as data

    if options.jobs > 1:
        _collect_in_parallel(options)
        return
    target = featurize.target_text(options.target)
    is_gpu = featurize.is_gpu(target)
    index, count = options.part
    lines = builtin.lines(_workload_text(options, is_gpu))[index::count]
    workloads = [featurize.workload(line) for line in lines]
    if not workloads:
        raise errors.WorkloadError("there are no workloads to measure")
    writer = data.Writer(options.out)
    known = data.read(options.out).records
    writer.add_workloads(workloads)
    model = _model(options.model, target) if is_gpu or options.model is not None else None
    predict = None if model is None else _predictor(model)
    with contextlib.ExitStack() as stack, writer:
        progress = collecting.collect(
            _space_opener(options, target, stack, model if is_gpu else None),
            workloads,
            writer,
            known,
            collecting.CollectOptions(
                target=target,
                tvm=importlib.metadata.version("apache-tvm"),
                device=featurize.device_text(target),
                per_workload=options.per_workload,
                seconds=options.seconds,
                seed=options.seed,
                near=options.near,
                turn=options.turn,
                in_flight=2 * options.builders if options.builders else 8,
                guided=0.0 if is_gpu else 0.5,
                descend=options.descend if is_gpu else 0.0,
                tournament=options.tournament if is_gpu else 1,
            ),
            time.monotonic,
            lambda: datetime.datetime.now(datetime.UTC),
            predict,
            _collect_reporter(),
        )
    print(
        f"{progress.measured} of {progress.wanted} schedules in {options.out} "
        f"({progress.failed} failed, {progress.invalid} rejected by TVM, {progress.lost} lost)"
    )


def _collect_in_parallel(options: argparse.Namespace) -> None:
    """Run one collector process for each share of the workloads; wait for all."""
    given = [word for word in sys.argv[1:] if not word.startswith("--jobs=")]
    if "--jobs" in given:
        del given[given.index("--jobs") : given.index("--jobs") + 2]
    base = [sys.executable, "-m", "costmodel", *given]
    parts = [f"{index}/{options.jobs}" for index in range(options.jobs)]
    running = [subprocess.Popen([*base, "--part", part]) for part in parts]
    failed = sum(process.wait() != 0 for process in running)
    if failed:
        raise errors.MeasureError(f"{failed} of {options.jobs} collectors failed")


def _workload_text(options: argparse.Namespace, is_gpu: bool) -> str:
    from costmodel import builtin, builtin_cuda

    if options.workloads == "builtin":
        return "\n".join(builtin_cuda.lines()) if is_gpu else builtin.LLVM
    try:
        return Path(options.workloads).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise errors.WorkloadError(f"cannot read {options.workloads}: {error}") from error


def _space_opener(
    options: argparse.Namespace, target: str, stack: contextlib.ExitStack, model: Any
) -> Callable[[data.Workload], collecting.Space]:
    """Opens workloads for measuring on this machine in one pool, which `stack` closes."""
    from costmodel import collect as collecting
    from costmodel import descending, featurize

    pools: list[Any] = []

    def open_space(workload: data.Workload) -> collecting.Space:
        task = featurize.task_of(workload, target)
        if not pools:
            pools.append(stack.enter_context(featurize.pool_for(task, options.builders)))
        view = pools[0].for_task(task)
        sketches = featurize.sketches_of(task)
        search = None if model is None else descending.search(sketches, model, options.seed)
        return collecting.Space(workload, sketches, view.submit, pools[0].gate.shared, search)

    return open_space


def _model(path: str | None, target: str) -> checkpoint.Predictor:
    """A checkpoint, or what a tuning run for the target would start from."""
    import torch

    from costmodel import checkpoint, featurize, registry

    torch.set_num_threads(1)
    version = featurize.features_version()
    if path is not None:
        return checkpoint.load(path, features_version=version)[0]
    names = featurize.FelixFeaturizer().names()
    return registry.load_for(target, names, version)[0]


def _predictor(model: checkpoint.Predictor) -> collecting.Predict:
    """A model as a function of sketch and decisions."""
    import numpy as np
    import torch

    from costmodel import featurize
    from costmodel import train as training

    def predict(sketch: Any, batch: NDArray[np.int64]) -> NDArray[np.floating[Any]]:
        formulas = sketch.formulas
        names = tuple(formulas.names)
        if names != tuple(model.names):
            raise errors.CheckpointError("the model was trained on other features")
        rows = np.asarray(formulas.exact(batch), dtype=np.float32)
        mask = featurize.mask_of(rows, names)
        predicted: NDArray[np.floating[Any]] = training.predict(
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
                f"collect: {progress.measured}/{progress.wanted} measured, "
                f"{progress.failed} failed, {progress.invalid} rejected, now {progress.workload}",
                file=sys.stderr,
                flush=True,
            )

    return report
