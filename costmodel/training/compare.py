"""Felix's features against TVM's, networks against trees, side by side on the same schedules.

All predictors are trained here, on the training part of the same split; networks and trees stop on
the validation part. Networks have the same shape and settings, except that only Felix's features
have an analytic latency to start from. With folds, each workload is scored by what was trained
without it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Sequence
from concurrent import futures
from typing import TypeAlias

import torch

from costmodel import registry
from costmodel.data import features as task_features
from costmodel.data import split as splitting
from costmodel.models import analytic
from costmodel.training import evaluate, metrics, train, xgboost
from felix import errors
from felix.processes import child

#: Tasks to one split, or several whose test parts do not overlap.
Splitter = Callable[[Sequence[task_features.TaskData]], Sequence[splitting.Split]]
#: Trains a predictor on the training part of a split; it may stop by the validation part.
Fit: TypeAlias = Callable[[splitting.Split], evaluate.Predictor]


def reports(
    felix: task_features.Features,
    tvm: task_features.Features,
    splitter: Splitter,
    options: train.TrainOptions,
    threads: int,
    jobs: int = 1,
    progress: Callable[[str], None] | None = None,
) -> list[evaluate.Report]:
    """Scores on the test parts, taken together; trees only where xgboost is installed.

    Args:
        felix: features of `felix_bridge.FelixFeaturizer`.
        tvm: features of the same schedules by `tvm_features.TvmFeaturizer`.
        splitter: `split.split` or `split.folds` with their options.
        threads: of torch and XGBoost, in each process.
        jobs: processes that train side by side; 1: all is trained in this one.
        progress: called with the label of each predictor once it is trained (for each split).

    Raises:
        RecordError: the two do not hold the same schedules.
    """
    if [len(task.ln_latency) for task in felix.tasks] != [len(t.ln_latency) for t in tvm.tasks]:
        raise errors.RecordError(
            f"the features are of different schedules ({felix.skipped} and {tvm.skipped} records "
            "could not be used)"
        )
    plain = dataclasses.replace(options, shape=dataclasses.replace(options.shape, prior=None))
    by_felix = splitter(felix.tasks)
    with _trainers(jobs, threads) as trainers:
        begun = [
            (
                f"{label}'s features, {kind}",
                splits,
                [trainers.submit(_predictions, fit, parts) for parts in splits],
            )
            for label, features, settings, splits in (
                ("Felix", felix, options, by_felix),
                ("TVM", tvm, plain, splitter(tvm.tasks)),
            )
            for kind, fit in _fits(features, settings, threads)
        ]
        reported = [_scored(*each, progress) for each in begun]
    prior = analytic.AnalyticModel(felix.names, registry.analytic_options(felix.names))
    tested = [task for parts in by_felix for task in parts.test]
    of_prior = evaluate.evaluate("analytic", evaluate.of_module(prior), tested)
    reported.insert(len(reported) // 2, of_prior)
    return reported


def _trainers(jobs: int, threads: int) -> contextlib.AbstractContextManager[futures.Executor]:
    """So many processes that train with so many threads each; one is a thread of this process."""
    if jobs == 1:
        return futures.ThreadPoolExecutor(
            1, initializer=torch.set_num_threads, initargs=(threads,)
        )
    return child.pool(jobs, torch.set_num_threads, (threads,))


def _predictions(fit: Fit, parts: splitting.Split) -> list[metrics.Vector]:
    """Train on a split; what is predicted of its test part."""
    predictor = fit(parts)
    return [predictor(task) for task in parts.test]


def _scored(
    name: str,
    splits: Sequence[splitting.Split],
    begun: Sequence[futures.Future[list[metrics.Vector]]],
    progress: Callable[[str], None] | None,
) -> evaluate.Report:
    """The scores of a predictor, of whose trainings one was begun for each split."""
    predicted: dict[int, metrics.Vector] = {}
    for parts, training in zip(splits, begun, strict=True):
        predicted |= dict(zip(map(id, parts.test), training.result(), strict=True))
        if progress is not None:
            progress(name)
    tested = [task for parts in splits for task in parts.test]
    return evaluate.evaluate(name, lambda task: predicted[id(task)], tested)


def _fits(
    features: task_features.Features, options: train.TrainOptions, threads: int
) -> Sequence[tuple[str, Fit]]:
    """What trains each predictor on a split, by name."""
    described = dataclasses.replace(features, tasks=())  # a split has its tasks
    fits: list[tuple[str, Fit]] = [("network", functools.partial(_network, described, options))]
    if xgboost.have_xgboost():
        fits.append(("XGBoost", functools.partial(_trees, options.seed, threads)))
    return fits


def _network(
    features: task_features.Features, options: train.TrainOptions, parts: splitting.Split
) -> evaluate.Predictor:
    trained = train.train(features, parts.train, parts.validation, options)
    return evaluate.of_module(trained.model)


def _trees(seed: int, threads: int, parts: splitting.Split) -> evaluate.Predictor:
    return xgboost.fit_xgboost(parts.train, parts.validation, seed, threads)
