"""The subcommands of `python -m costmodel` but `collect`: wiring, progress and files.

Reads everything of the package; fed by `__main__`.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import datetime
import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from felix import errors

if TYPE_CHECKING:
    from costmodel import checkpoint, split
    from costmodel import dataset as data
    from costmodel import evaluate as evaluation
    from costmodel import tasks as task_data
    from costmodel import train as training

#: Beside a checkpoint: its scores, and with `--final` the weights that were scored.
SCORES = "scores.json"
HELD_OUT = "held_out.safetensors"


def train(options: argparse.Namespace, command: str) -> None:
    """Train, score on the test part, write checkpoint and card."""
    from costmodel import card, checkpoint, tensorfile
    from costmodel import replay as replaying
    from costmodel import split as splitting
    from costmodel import train as training

    out = Path(options.out)
    tensorfile.check_writable(out)
    with _threads(options.threads):
        dataset, features = _training_features(options)
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
        weight_decay=options.weight_decay,
        rank_weight=options.rank_weight,
        failures=options.failures,
        seed=options.seed,
        shape=mlp.ModelOptions(options.hidden, options.blocks, prior=options.prior),
    )


def _without_cache(command: str) -> str:
    """The command without `--cache FOLDER` and `--jobs N`: this machine's, and without effect."""
    return re.sub(r" --(cache|jobs)(=| )\S+", "", command)


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
        _, features = _training_features(options)
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
        _, felix = _training_features(options)
        _, tvm = _features(options, tvm_features.TvmFeaturizer)
        reports = comparing.reports(
            felix, tvm, _split_options(options), _train_options(options), options.threads, say
        )
    print(evaluation.table(reports))
    _write_reports(options, command, "test", reports)


def ablate(options: argparse.Namespace, command: str) -> None:
    """Score trainings without groups of features and with other weights of the ranking."""
    from costmodel import ablate as ablating
    from costmodel import evaluate as evaluation
    from costmodel import provenance, tensorfile

    def say(label: str) -> None:
        print(f"ablate: {label}", file=sys.stderr, flush=True)

    every = {variant.name: variant for variant in ablating.VARIANTS}
    if unknown := set(options.variants or ()) - set(every):
        raise errors.RecordError(f"no variant {min(unknown)!r}: use one of {', '.join(every)}")
    chosen = [every[name] for name in options.variants or every]
    with _threads(options.threads):
        _, features = _training_features(options)
        split, settings = _split_options(options), _train_options(options)
        found = list(ablating.results(features, split, settings, chosen, options.seeds, say))
    print(evaluation.table([evaluation.Report(r.variant.name, (), r.mean) for r in found]))
    if options.out is not None:
        content = provenance.facts(_without_cache(command)) | {
            "split": options.split,
            "rows": [
                {
                    "variant": dataclasses.asdict(result.variant),
                    "mean": dataclasses.asdict(result.mean),
                    "seeds": [dataclasses.asdict(scores) for scores in result.seeds],
                }
                for result in found
            ],
        }
        tensorfile.write_bytes(Path(options.out), json.dumps(content, indent=1).encode())


def _fold_done(done: int, total: int) -> None:
    print(f"crossval: {done}/{total} folds", file=sys.stderr, flush=True)


def _write_reports(
    options: argparse.Namespace, command: str, part: str, reports: Sequence[evaluation.Report]
) -> None:
    from costmodel import provenance, tensorfile

    if options.out is not None:
        content = provenance.facts(_without_cache(command)) | {
            "part": part,
            "split": options.split,
            "seed": options.seed,
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
    options: argparse.Namespace, make: Callable[[], task_data.Featurizer] | None = None
) -> tuple[data.Dataset, task_data.Features]:
    """Data set and features, Felix's where no maker of another featurizer is given."""
    from costmodel import dataset as data
    from costmodel import featurize, filling
    from costmodel import tasks as task_data

    dataset = data.read(options.data)
    for part in dataset.torn:
        print(f"costmodel: left out unreadable {part}", file=sys.stderr)
    cache = None if options.cache is None else Path(options.cache)

    def report(done: int, total: int) -> None:
        if done % 10 == 0 or done == total:
            print(f"features: {done}/{total} workloads", file=sys.stderr, flush=True)

    make = make or featurize.FelixFeaturizer
    if options.jobs > 1:
        if cache is None:
            raise errors.RecordError("--jobs fills a cache of features: give --cache as well")
        filling.fill(dataset, make, cache, options.jobs, report)
    features = task_data.load_features(
        dataset, make(), cache, None if options.jobs > 1 else report
    )
    if features.skipped:
        print(f"costmodel: {features.skipped} records could not be used", file=sys.stderr)
    return dataset, features


def _training_features(
    options: argparse.Namespace,
) -> tuple[data.Dataset, task_data.Features]:
    """Data set and Felix's features, without those that `--drop` names."""
    from costmodel import tasks as task_data

    dataset, features = _features(options)
    return dataset, task_data.without(features, options.drop)


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
