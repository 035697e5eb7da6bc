"""Felix's features against TVM's, networks against trees, side by side on the same schedules.

All predictors are trained here, on the training part of the same split; networks and trees stop on
the validation part. Networks have the same shape and settings, except that only Felix's features
have an analytic latency to start from. With folds, each workload is scored by what was trained
without it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from costmodel import registry
from costmodel.data import features as task_features
from costmodel.data import split as splitting
from costmodel.models import analytic
from costmodel.training import evaluate, train, xgboost
from felix import errors

#: Tasks to one split, or several whose test parts do not overlap.
Splitter = Callable[[Sequence[task_features.TaskData]], Sequence[splitting.Split]]


def reports(
    felix: task_features.Features,
    tvm: task_features.Features,
    splitter: Splitter,
    options: train.TrainOptions,
    threads: int,
    progress: Callable[[str], None] | None = None,
) -> list[evaluate.Report]:
    """Scores on the test parts, taken together; trees only where xgboost is installed.

    Args:
        felix: features of `felix_bridge.FelixFeaturizer`.
        tvm: features of the same schedules by `tvm_features.TvmFeaturizer`.
        splitter: `split.split` or `split.folds` with their options.
        threads: of XGBoost.
        progress: called with the label of each predictor before it is trained (for each split).

    Raises:
        RecordError: the two do not hold the same schedules.
    """
    if [len(task.ln_latency) for task in felix.tasks] != [len(t.ln_latency) for t in tvm.tasks]:
        raise errors.RecordError(
            f"the features are of different schedules ({felix.skipped} and {tvm.skipped} records "
            "could not be used)"
        )
    prior = analytic.AnalyticModel(felix.names, registry.analytic_options(felix.names))
    plain = dataclasses.replace(options, shape=dataclasses.replace(options.shape, prior=None))
    reported = []
    for label, features, settings in (("Felix", felix, options), ("TVM", tvm, plain)):
        splits = splitter(features.tasks)
        tested = [task for parts in splits for task in parts.test]
        for kind, fit in _fits(features, settings, threads):
            name = f"{label}'s features, {kind}"
            predictors: dict[int, evaluate.Predictor] = {}
            for parts in splits:
                if progress is not None:
                    progress(name)
                predictors |= dict.fromkeys(map(id, parts.test), fit(parts))
            reported.append(evaluate.evaluate(name, evaluate.by_task(predictors), tested))
        if features is felix:
            reported.append(evaluate.evaluate("analytic", evaluate.of_module(prior), tested))
    return reported


def _fits(
    features: task_features.Features, options: train.TrainOptions, threads: int
) -> Sequence[tuple[str, Callable[[splitting.Split], evaluate.Predictor]]]:
    """What trains each predictor on a split, by name."""

    def network(parts: splitting.Split) -> evaluate.Predictor:
        trained = train.train(features, parts.train, parts.validation, options)
        return evaluate.of_module(trained.model)

    def trees(parts: splitting.Split) -> evaluate.Predictor:
        return xgboost.fit_xgboost(parts.train, parts.validation, options.seed, threads)

    return [("network", network)] + ([("XGBoost", trees)] if xgboost.have_xgboost() else [])
