"""Felix's features against TVM's, networks against trees, on one split of the same schedules.

All predictors are trained here, side by side, on the training part; networks and trees stop on
the validation part. Networks have the same shape and settings, except that only Felix's features
have an analytic latency to start from. Reads `tasks`, `split`, `train`, `baselines`; feeds the
command line.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from costmodel import analytic, baselines, evaluate, registry, train
from costmodel import split as splitting
from costmodel import tasks as task_data
from felix import errors


def reports(
    felix: task_data.Features,
    tvm: task_data.Features,
    split: splitting.SplitOptions,
    options: train.TrainOptions,
    threads: int,
    progress: Callable[[str], None] | None = None,
) -> list[evaluate.Report]:
    """Scores on the test part; trees only where xgboost is installed.

    Args:
        felix: features of `featurize.FelixFeaturizer`.
        tvm: features of the same schedules by `tvm_features.TvmFeaturizer`.
        threads: of XGBoost.
        progress: called with the label of each predictor before it is trained.

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
    found = []
    for label, features, settings in (("Felix", felix, options), ("TVM", tvm, plain)):
        parts = splitting.split(features.tasks, split)
        for kind, predictor in _predictors(features, parts, settings, threads):
            if progress is not None:
                progress(f"{label}'s features, {kind}")
            found.append(evaluate.evaluate(f"{label}'s features, {kind}", predictor(), parts.test))
        if features is felix:
            found.append(evaluate.evaluate("analytic", evaluate.of_module(prior), parts.test))
    return found


def _predictors(
    features: task_data.Features,
    parts: splitting.Split,
    options: train.TrainOptions,
    threads: int,
) -> Sequence[tuple[str, Callable[[], evaluate.Predictor]]]:
    """What trains each predictor, by name."""

    def network() -> evaluate.Predictor:
        trained = train.train(features, parts.train, parts.validation, options)
        return evaluate.of_module(trained.model)

    def trees() -> evaluate.Predictor:
        return baselines.fit_xgboost(parts.train, parts.validation, options.seed, threads)

    return [("network", network)] + ([("XGBoost", trees)] if baselines.have_xgboost() else [])
