"""Cross-validation: every workload is scored by models that never saw it.

One split holds out few workloads, and their mean score moves by more than most choices of
features, losses or sizes are worth. With k folds all workloads count, at k trainings.
Reads `split`, `train`, `baselines`; feeds the command line.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from costmodel import analytic, baselines, evaluate, metrics, registry, train
from costmodel import split as splitting
from costmodel import tasks as task_data

Progress = Callable[[int, int], None]


def reports(
    features: task_data.Features,
    options: train.TrainOptions,
    folds: Sequence[splitting.Split],
    trees_threads: int | None = None,
    progress: Progress | None = None,
) -> list[evaluate.Report]:
    """Scores over all tasks: the network, the analytic prior, and trees where asked for.

    Args:
        folds: each task in the test part of one of them; networks train on the other parts for
            all epochs, trees stop early on the validation part.
        trees_threads: of XGBoost; None leaves it out.
        progress: called with (folds done, folds in all).
    """
    networks: dict[int, evaluate.Predictor] = {}
    trees: dict[int, evaluate.Predictor] = {}
    for done, fold in enumerate(folds):
        rest = dataclasses.replace(features, tasks=(*fold.train, *fold.validation))
        network = evaluate.of_module(train.train_all(rest, options).model)
        networks |= {id(task): network for task in fold.test}
        if trees_threads is not None:
            fitted = baselines.fit_xgboost(
                fold.train, fold.validation, options.seed, trees_threads
            )
            trees |= {id(task): fitted for task in fold.test}
        if progress is not None:
            progress(done + 1, len(folds))
    prior = analytic.AnalyticModel(features.names, registry.analytic_options(features.names))
    tasks = features.tasks
    found = [evaluate.evaluate("network", by_task(networks), tasks)]
    found.append(evaluate.evaluate("analytic", evaluate.of_module(prior), tasks))
    if trees_threads is not None:
        found.append(evaluate.evaluate("xgboost", by_task(trees), tasks))
    return found


def by_task(predictors: dict[int, evaluate.Predictor]) -> evaluate.Predictor:
    """One predictor of many; those of the tasks are given by the tasks' `id`."""

    def predict(task: task_data.TaskData) -> metrics.Vector:
        return predictors[id(task)](task)

    return predict
