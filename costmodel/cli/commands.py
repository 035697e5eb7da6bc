"""The subcommands of `python -m costmodel` but `collect`: wiring, progress and files."""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from costmodel.cli import inputs, outputs
from felix import errors
from felix.autodiff import torch_threads

if TYPE_CHECKING:
    from costmodel.data import dataset as datasets
    from costmodel.data import features as task_features
    from costmodel.data import split as splitting
    from costmodel.models import checkpoint
    from costmodel.training import calibration
    from costmodel.training import evaluate as evaluation
    from costmodel.training import train as training


def train(options: argparse.Namespace, command: str) -> None:
    """Train, score on the test part, write checkpoint, card and scores."""
    from costmodel.data import replay as replaying
    from costmodel.data import split as splitting
    from costmodel.models import checkpoint
    from costmodel.training import evaluate as evaluation
    from costmodel.training import model_card
    from costmodel.training import train as training

    out = Path(options.out)
    scores_folder = out.parent if options.scores is None else Path(options.scores)
    for folder in (out.parent, scores_folder):
        outputs.check_writable(folder)
    with torch_threads.limit(options.threads):
        dataset, features = inputs.load_for_training(options)
        parts = splitting.split(features.tasks, inputs.split_options(options))
        settings = inputs.train_options(options)
        trained = training.train(
            features, parts.train, parts.validation, settings, _epoch_reporter()
        )
        scored_model = trained.model
        scores = _scores(options, scored_model, features, parts)
        if options.final:
            trained = training.train_all(features, settings, _epoch_reporter(), trained.line)
    metadata = checkpoint.Metadata(
        features_version=features.version,
        feature_names=features.names,
        device=inputs.device(features.tasks),
        device_name=inputs.device_name(features.tasks),
        data=inputs.data_facts(dataset, features, parts, options)
        | _calibration(settings, trained.line),
        scores=evaluation.without_workloads(scores),
        date=datetime.datetime.now(datetime.UTC).date().isoformat(),
        command=_without_cache(command),
    )
    checkpoint.save(out, trained.model, metadata)
    if options.final:  # what the scores are of: these weights never saw the test part
        checkpoint.save(scores_folder / model_card.HELD_OUT, scored_model, metadata)
    if options.replay:
        trained_on = features.tasks if options.final else parts.train
        sample = replaying.sample(trained_on, options.replay, options.seed)
        replay_path = out.with_name(replaying.FILE_NAME)
        replaying.save(replay_path, sample, features.names, features.version)
    card = outputs.write_scores(out, trained.model, metadata, scores, scores_folder)
    print(f"wrote {out} and {card}")


def _calibration(settings: training.TrainOptions, line: calibration.Line) -> dict[str, str]:
    """What the card says of it; the line is that of the weights that were scored."""
    if not settings.calibrate:
        return {}
    formula = f"{line.slope:.3f} p + {line.intercept:.3f}"
    return {"calibration": f"{formula}, fitted to the scored weights on the validation workloads"}


def _without_cache(command: str) -> str:
    """The command without `--cache FOLDER` and `--jobs N`: this machine's, and without effect."""
    return re.sub(r" --(cache|jobs)(=| )\S+", "", command)


def _scores(
    options: argparse.Namespace,
    model: checkpoint.Predictor,
    features: task_features.Features,
    parts: splitting.Split,
) -> dict[str, Any]:
    """Scores of model and baselines on the test part (validation where there is none)."""
    from costmodel.training import evaluate as evaluation

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
    from costmodel.data import features as task_features
    from costmodel.data import split as splitting
    from costmodel.models import checkpoint
    from costmodel.online import corrected
    from costmodel.training import evaluate as evaluation

    if options.measured and options.model is None:
        raise errors.CheckpointError("nothing to correct: --measured needs --model")
    if options.model is None and not options.baselines:
        raise errors.CheckpointError("nothing to score: give --model, --baselines or both")
    with torch_threads.limit(options.threads):
        dataset, features = inputs.load(options)
        parts = splitting.split(features.tasks, inputs.split_options(options))
        by_name = {"test": parts.test, "validation": parts.validation, "all": features.tasks}
        tasks: Sequence[task_features.TaskData] = by_name[options.part]
        if options.sources is not None:
            tasks = task_features.of_sources(tasks, options.sources)
        reports = []
        if options.model is not None:
            model, _ = checkpoint.load(options.model, features.names, features.version)
            reports.append(evaluation.evaluate(options.model, evaluation.of_module(model), tasks))
        if options.baselines:
            reports += _baselines(features, parts, tasks, options)
        after = [
            report
            for count in options.measured
            for report in corrected.reports(model, tasks, count, options.seed)
        ]
    print(evaluation.table(reports, options.per_task))
    facts = _facts(command, dataset, features)
    if after:
        print(evaluation.table(after))
        facts["corrected"] = [report.as_json() for report in after]
        process = corrected.process_of_errors(model, tasks)
        if process is not None:
            print(process)
            facts["errors"] = dataclasses.asdict(process)
    _write_reports(options, facts, options.part, reports)


def compare(options: argparse.Namespace, command: str) -> None:
    """Score networks and trees on Felix's and on TVM's features, all trained here."""
    from costmodel.data import split as splitting
    from costmodel.data import tvm_features
    from costmodel.training import compare as comparing
    from costmodel.training import evaluate as evaluation

    split_options, n_folds = inputs.split_options(options), options.folds

    def splits(tasks: Sequence[task_features.TaskData]) -> Sequence[splitting.Split]:
        if n_folds is None:
            return [splitting.split(tasks, split_options)]
        return splitting.folds(tasks, n_folds, split_options)

    def say(label: str) -> None:
        print(f"compare: {label}", file=sys.stderr, flush=True)

    with torch_threads.limit(options.threads):
        dataset, felix = inputs.load_for_training(options)
        _, tvm = inputs.load(options, tvm_features.TvmFeaturizer)
        train_options = inputs.train_options(options)
        reports = comparing.reports(
            felix, tvm, splits, train_options, options.threads, options.jobs, say
        )
    print(evaluation.table(reports))
    part = "test" if n_folds is None else f"{n_folds} folds"
    _write_reports(options, _facts(command, dataset, felix), part, reports)


def ablate(options: argparse.Namespace, command: str) -> None:
    """Score trainings without groups of features and with other weights of the ranking."""
    from costmodel.training import ablate as ablating
    from costmodel.training import evaluate as evaluation

    def say(label: str) -> None:
        print(f"ablate: {label}", file=sys.stderr, flush=True)

    by_name = {variant.name: variant for variant in ablating.VARIANTS[inputs.kind(options)]}
    if unknown := set(options.variants or ()) - set(by_name):
        raise errors.RecordError(f"no variant {min(unknown)!r}: use one of {', '.join(by_name)}")
    variants = [by_name[name] for name in options.variants or by_name]
    with torch_threads.limit(options.threads):
        dataset, features = inputs.load_for_training(options)
        split, settings = inputs.split_options(options), inputs.train_options(options)
        ablations = list(ablating.results(features, split, settings, variants, options.seeds, say))
    print(evaluation.table([evaluation.Report(a.variant.name, (), a.mean) for a in ablations]))
    rows = [
        {
            "variant": dataclasses.asdict(ablation.variant),
            "mean": dataclasses.asdict(ablation.mean),
            "seeds": [dataclasses.asdict(scores) for scores in ablation.seeds],
        }
        for ablation in ablations
    ]
    facts = _facts(command, dataset, features)
    outputs.write_results(options, facts | {"split": options.split, "rows": rows})


def _facts(
    command: str, dataset: datasets.Dataset, features: task_features.Features
) -> dict[str, Any]:
    """Where figures come from: what ran, when, where and of which version; on which data."""
    from costmodel.training import provenance

    return provenance.facts(_without_cache(command)) | {
        "data": dataset.digest,
        "device": inputs.device_name(features.tasks),
    }


def _write_reports(
    options: argparse.Namespace,
    facts: dict[str, Any],
    part: str,
    reports: Sequence[evaluation.Report],
) -> None:
    scores = {
        "part": part,
        "split": options.split,
        "seed": options.seed,
        "reports": [report.as_json() for report in reports],
    }
    outputs.write_results(options, facts | scores)


def compact(options: argparse.Namespace, command: str) -> None:
    """Copy a data set into single parts."""
    from costmodel.data import dataset as datasets

    dataset = datasets.compact(options.source, options.folder)
    print(f"{len(dataset.records)} records, digest {dataset.digest}, in {options.folder}")


def _baselines(
    features: task_features.Features,
    parts: splitting.Split,
    tasks: Sequence[task_features.TaskData],
    options: argparse.Namespace,
) -> Iterator[evaluation.Report]:
    """Scores of the analytic prior as it is, and of trees if xgboost is installed."""
    from costmodel import registry
    from costmodel.training import evaluate as evaluation
    from costmodel.training import xgboost

    prior = registry.analytic_baseline(features.names, inputs.kind(options))
    yield evaluation.evaluate("analytic", evaluation.of_module(prior), tasks)
    if xgboost.have_xgboost():
        trees = xgboost.fit_xgboost(parts.train, parts.validation, options.seed, options.threads)
        yield evaluation.evaluate("xgboost", trees, tasks)


def _epoch_reporter() -> Callable[[training.Epoch], None]:
    def report(epoch: training.Epoch) -> None:
        if epoch.epoch % 10 == 0:
            print(
                f"epoch {epoch.epoch}: training {epoch.train_loss:.4f}, "
                f"validation {epoch.validation_loss:.4f}",
                file=sys.stderr,
                flush=True,
            )

    return report
