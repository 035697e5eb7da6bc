"""The subcommands of `python -m costmodel`: wiring, progress and files.

Reads everything of the package; fed by `__main__`.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from felix import errors

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from costmodel import checkpoint, split
    from costmodel import collect as collecting
    from costmodel import dataset as data
    from costmodel import evaluate as evaluation
    from costmodel import tasks as task_data
    from costmodel import train as training

#: Beside a checkpoint: its scores, and with `--final` the weights that were scored.
SCORES = "scores.json"
HELD_OUT = "held_out.safetensors"


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


def train(options: argparse.Namespace, command: str) -> None:
    """Train, score on the test part, write checkpoint and card."""
    from costmodel import card, checkpoint, tensorfile
    from costmodel import replay as replaying
    from costmodel import split as splitting
    from costmodel import train as training

    out = Path(options.out)
    tensorfile.check_writable(out)
    with _threads(options.threads):
        dataset, features = _features(options)
        parts = splitting.split(features.tasks, _split_options(options))
        settings = _train_options(options)
        trained = training.train(
            features, parts.train, parts.validation, settings, _epoch_reporter()
        )
        scored = trained.model
        scores = _scores(options, scored, features, parts)
        if options.final:
            trained = training.train_all(features, settings, _epoch_reporter())
    metadata = checkpoint.Metadata(
        features_version=features.version,
        feature_names=features.names,
        device=_device(features.tasks),
        device_name=_device_name(features.tasks),
        data=_data_facts(dataset, features, parts, options),
        scores=scores,
        date=datetime.datetime.now(datetime.UTC).date().isoformat(),
        command=_without_cache(command),
    )
    checkpoint.save(out, trained.model, metadata)
    tensorfile.write_bytes(out.with_name(SCORES), json.dumps(scores, indent=1).encode())
    if options.final:  # what the scores are of: these weights never saw the test part
        checkpoint.save(out.with_name(HELD_OUT), scored, metadata)
    if options.replay:
        seen = features.tasks if options.final else parts.train
        sample = replaying.sample(seen, options.replay, options.seed)
        beside = out.with_name(replaying.FILE_NAME)
        replaying.save(beside, sample, features.names, features.version)
    print(f"wrote {out} and {card.write(out, trained.model, metadata)}")


def _train_options(options: argparse.Namespace) -> training.TrainOptions:
    from costmodel import model as mlp
    from costmodel import train as training

    return training.TrainOptions(
        epochs=options.epochs,
        patience=options.patience,
        lr=options.lr,
        rank_weight=options.rank_weight,
        failures=options.failures,
        seed=options.seed,
        shape=mlp.ModelOptions(options.hidden, options.blocks, prior=options.prior),
    )


def _without_cache(command: str) -> str:
    """The command without `--cache FOLDER`, which is this machine's and changes no result."""
    return re.sub(r" --cache(=| )\S+", "", command)


def _scores(
    options: argparse.Namespace,
    model: checkpoint.Predictor,
    features: task_data.Features,
    parts: split.Split,
) -> dict[str, Any]:
    """Scores of model and baselines on the test part (validation where there is none)."""
    from costmodel import evaluate as evaluation

    part, tasks = ("test", parts.test) if parts.test else ("validation", parts.validation)
    if not tasks:
        return {}
    reports = [evaluation.evaluate("network", evaluation.of_module(model), tasks)]
    reports += _baselines(features, parts, tasks, options)
    print(evaluation.table(reports))
    return {
        "part": f"{len(tasks)} {part} workloads never trained on (split by {options.split}, "
        f"seed {options.seed})"
        + ("; the shipped weights were trained once more on all" if options.final else ""),
        "reports": [report.as_json() for report in reports],
    }


def evaluate(options: argparse.Namespace, command: str) -> None:
    """Score a checkpoint and the baselines on one part of the data."""
    from costmodel import checkpoint
    from costmodel import evaluate as evaluation
    from costmodel import split as splitting

    if options.model is None and not options.baselines:
        raise errors.CheckpointError("nothing to score: give --model, --baselines or both")
    with _threads(options.threads):
        _, features = _features(options)
        parts = splitting.split(features.tasks, _split_options(options))
        by_name = {"test": parts.test, "validation": parts.validation, "all": features.tasks}
        tasks = by_name[options.part]
        reports = []
        if options.model is not None:
            model, _ = checkpoint.load(options.model, features.names, features.version)
            reports.append(evaluation.evaluate(options.model, evaluation.of_module(model), tasks))
        if options.baselines:
            reports += _baselines(features, parts, tasks, options)
    print(evaluation.table(reports, options.per_task))
    _write_reports(options, command, options.part, reports)


def crossval(options: argparse.Namespace, command: str) -> None:
    """Score training with these options, every workload by models that never saw it."""
    from costmodel import baselines
    from costmodel import crossval as crossing
    from costmodel import evaluate as evaluation
    from costmodel import split as splitting

    trees = options.threads if options.baselines and baselines.have_xgboost() else None
    with _threads(options.threads):
        _, features = _features(options)
        folds = splitting.folds(features.tasks, options.folds, _split_options(options))
        reports = crossing.reports(features, _train_options(options), folds, trees, _fold_done)
    print(evaluation.table(reports))
    _write_reports(options, command, f"{options.folds} folds", reports)


def compare(options: argparse.Namespace, command: str) -> None:
    """Score networks and trees on Felix's and on TVM's features, all trained here."""
    from costmodel import compare as comparing
    from costmodel import evaluate as evaluation
    from costmodel import tvm_features

    def say(label: str) -> None:
        print(f"compare: {label}", file=sys.stderr, flush=True)

    with _threads(options.threads):
        _, felix = _features(options)
        _, tvm = _features(options, tvm_features.TvmFeaturizer())
        reports = comparing.reports(
            felix, tvm, _split_options(options), _train_options(options), options.threads, say
        )
    print(evaluation.table(reports))
    _write_reports(options, command, "test", reports)


def _fold_done(done: int, total: int) -> None:
    print(f"crossval: {done}/{total} folds", file=sys.stderr, flush=True)


def _write_reports(
    options: argparse.Namespace, command: str, part: str, reports: Sequence[evaluation.Report]
) -> None:
    from costmodel import tensorfile

    if options.out is not None:
        content = {
            "part": part,
            "split": options.split,
            "seed": options.seed,
            "command": _without_cache(command),
            "reports": [report.as_json() for report in reports],
        }
        tensorfile.write_bytes(Path(options.out), json.dumps(content, indent=1).encode())


def compact(options: argparse.Namespace, command: str) -> None:
    """Copy a data set into single parts."""
    from costmodel import dataset as data

    dataset = data.compact(options.source, options.folder)
    print(f"{len(dataset.records)} records, digest {dataset.digest}, in {options.folder}")


def _baselines(
    features: task_data.Features,
    parts: split.Split,
    tasks: Sequence[task_data.TaskData],
    options: argparse.Namespace,
) -> Iterator[evaluation.Report]:
    """The analytic prior as it is, and trees if xgboost is there."""
    from costmodel import analytic, baselines, registry
    from costmodel import evaluate as evaluation

    prior = analytic.AnalyticModel(features.names, registry.analytic_options(features.names))
    yield evaluation.evaluate("analytic", evaluation.of_module(prior), tasks)
    if baselines.have_xgboost():
        trees = baselines.fit_xgboost(parts.train, parts.validation, options.seed, options.threads)
        yield evaluation.evaluate("xgboost", trees, tasks)


def _features(
    options: argparse.Namespace, featurizer: task_data.Featurizer | None = None
) -> tuple[data.Dataset, task_data.Features]:
    """Data set and features, Felix's where no other featurizer is given."""
    from costmodel import dataset as data
    from costmodel import featurize
    from costmodel import tasks as task_data

    dataset = data.read(options.data)
    for part in dataset.torn:
        print(f"costmodel: left out unreadable {part}", file=sys.stderr)
    cache = None if options.cache is None else Path(options.cache)

    def report(done: int, total: int) -> None:
        if done % 10 == 0 or done == total:
            print(f"features: {done}/{total} workloads", file=sys.stderr, flush=True)

    features = task_data.load_features(
        dataset, featurizer or featurize.FelixFeaturizer(), cache, report
    )
    if features.skipped:
        print(f"costmodel: {features.skipped} records could not be used", file=sys.stderr)
    return dataset, features


def _split_options(options: argparse.Namespace) -> split.SplitOptions:
    from costmodel import split as splitting

    return splitting.SplitOptions(options.split, options.validation, options.test, options.seed)


@contextlib.contextmanager
def _threads(count: int) -> Iterator[None]:
    """Torch threads for the duration; results depend on the number."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _epoch_reporter() -> Callable[[Any], None]:
    def report(epoch: Any) -> None:
        if epoch.epoch % 10 == 0:
            print(
                f"epoch {epoch.epoch}: training {epoch.train_loss:.4f}, "
                f"validation {epoch.validation_loss:.4f}",
                file=sys.stderr,
                flush=True,
            )

    return report


def _device(tasks: Sequence[task_data.TaskData]) -> str:
    """The one device kind of the tasks; raises RecordError when they are mixed."""
    from costmodel import registry

    kinds = {registry.device_key(task.target) for task in tasks}
    if len(kinds) != 1:
        raise errors.RecordError(f"the data mix devices: {', '.join(sorted(kinds))}")
    return kinds.pop()


def _device_name(tasks: Sequence[task_data.TaskData]) -> str:
    """Names of the devices; their records describe them in full."""
    from costmodel import featurize

    names = set()
    for task in tasks:
        machine = featurize.hardware_of(task.device)
        names.add(f"{machine.name} ({machine.cores} cores)" if machine else task.device)
    return ", ".join(sorted(names - {""}))


def _data_facts(
    dataset: data.Dataset,
    features: task_data.Features,
    parts: split.Split,
    options: argparse.Namespace,
) -> dict[str, Any]:
    operators = Counter(task.workload.operator for task in features.tasks)
    ran = sum(int(task.measured.sum()) for task in features.tasks)
    total = sum(len(task.ln_latency) for task in features.tasks)
    records = [r.measured_at for r in dataset.records]
    return {
        "digest": dataset.digest,
        "schedules": f"{ran} measured, {total - ran} failed, {features.skipped} not usable",
        "workloads": len({task.workload.key for task in features.tasks}),
        "operators": ", ".join(f"{n} {c}" for n, c in sorted(operators.items())),
        "split": f"by {options.split}, seed {options.seed}: {len(parts.train)} training, "
        f"{len(parts.validation)} validation, {len(parts.test)} test workloads",
        "failures": options.failures,
        "measured": f"{min(records):%Y-%m-%d} to {max(records):%Y-%m-%d}",
        "TVM": ", ".join(sorted({r.tvm for r in dataset.records})),
    }
