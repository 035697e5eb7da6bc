"""Splits, scores, losses and training, on data whose law is known."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch

from costmodel.data import features as task_features
from costmodel.data import split
from costmodel.training import calibration, evaluate, losses, metrics, train, xgboost
from felix import errors
from tests.support.synthetic_task_data import SMALL, features, quick, task


def many(operators: str = "abc", each: int = 8) -> list[task_features.TaskData]:
    return [task(i + 100 * k, 6, o) for k, o in enumerate(operators) for i in range(each)]


def test_split_by_workload_is_disjoint_stratified_and_stable() -> None:
    all_tasks = many(each=10)
    parts = split.split(all_tasks, split.SplitOptions(validation=0.2, test=0.3, seed=1))
    keys = [{t.workload.key for t in p} for p in (parts.train, parts.validation, parts.test)]
    assert not keys[0] & keys[1] and not keys[0] & keys[2] and not keys[1] & keys[2]
    assert [len(k) for k in keys] == [15, 6, 9]
    assert Counter(t.workload.operator for t in parts.test) == {"a": 3, "b": 3, "c": 3}
    again = split.split(all_tasks[::-1], split.SplitOptions(validation=0.2, test=0.3, seed=1))
    assert {t.workload.key for t in again.test} == keys[2]
    other = split.split(all_tasks, split.SplitOptions(validation=0.2, test=0.3, seed=2))
    assert {t.workload.key for t in other.test} != keys[2]


def test_small_operators_add_up_in_the_split() -> None:
    all_tasks = many("abcdefghij", each=2)
    parts = split.split(all_tasks, split.SplitOptions(validation=0.2, test=0.2))
    assert len(parts.test) == 4 and len(parts.validation) in (3, 4)
    alone = split.split(many("abc", each=1), split.SplitOptions(validation=0.4, test=0.4))
    assert len(alone.train) == 3  # a lone workload of an operator always trains


def test_same_workload_on_two_devices_stays_together() -> None:
    all_tasks = many(each=6)
    all_tasks += [dataclasses.replace(t, device="other") for t in all_tasks]
    parts = split.split(all_tasks, split.SplitOptions(validation=0.2, test=0.2))
    train_keys = {t.workload.key for t in parts.train}
    assert not train_keys & {t.workload.key for t in parts.test + parts.validation}


def test_split_by_operator_holds_out_whole_operators() -> None:
    options = split.SplitOptions(by="operator", validation=0.2, test=0.4, seed=3)
    parts = split.split(many("abcde", each=3), options)
    operators = [
        {t.workload.operator for t in p} for p in (parts.train, parts.validation, parts.test)
    ]
    assert [len(o) for o in operators] == [2, 1, 2] and len(set().union(*operators)) == 5


@pytest.mark.parametrize("by", ["workload", "operator"])
def test_folds_score_every_task_once_and_never_train_on_it(by: str) -> None:
    all_tasks = many("abcde", each=7)
    folds = split.folds(all_tasks, 5, split.SplitOptions(by=by, validation=0.2))
    assert sorted(t.workload.key for f in folds for t in f.test) == sorted(
        t.workload.key for t in all_tasks
    )
    for fold in folds:
        parts = (fold.train, fold.validation, fold.test)
        assert sum(map(len, parts)) == len(all_tasks) and fold.train
        units = [
            {t.workload.key if by == "workload" else t.workload.operator for t in p} for p in parts
        ]
        assert not units[2] & (units[0] | units[1])
    if by == "workload":  # each operator is dealt out evenly
        counts = [Counter(t.workload.operator for t in f.test) for f in folds]
        assert {c[o] for c in counts for o in "abcde"} == {1, 2}


def test_more_folds_than_workloads_are_refused() -> None:
    with pytest.raises(errors.RecordError, match="3 operators cannot make 4 folds"):
        split.folds(many("abc"), 4, split.SplitOptions(by="operator"))


@pytest.mark.parametrize(
    "bad", [{"by": "record"}, {"test": -0.1}, {"test": 0.6, "validation": 0.5}]
)
def test_impossible_splits_are_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(errors.RecordError):
        split.SplitOptions(**bad)


def test_perfect_reversed_and_constant_predictions() -> None:
    y = np.log(np.array([4.0, 1.0, 2.0, 8.0, 16.0, 32.0, 64.0]))
    perfect = metrics.score(y, y)
    assert dataclasses.astuple(perfect) == pytest.approx((1, 1, 1, 1, 1, 0, 0, 1, 0), abs=1e-9)
    reversed_ = metrics.score(-y, y)
    assert reversed_.pairwise == 0 and reversed_.spearman == pytest.approx(-1)
    assert reversed_.near_best == 0
    assert reversed_.top1 == pytest.approx(1 / 64) and reversed_.top5 == pytest.approx(1 / 4)
    constant = metrics.score(np.ones(7), y)
    assert (
        constant.pairwise == 0.5 and math.isnan(constant.spearman) and math.isnan(constant.slope)
    )


def test_a_choice_is_near_the_best_within_a_quarter() -> None:
    y = np.log(np.array([1.0, 1.24, 1.26, 3.0]))
    chosen = [metrics.score(np.array(p), y) for p in ([0, 1, 2, 3], [1, 0, 2, 3], [1, 2, 0, 3])]
    assert [scores.near_best for scores in chosen] == [1, 1, 0]
    assert metrics.mean(chosen).near_best == pytest.approx(2 / 3)


def test_bias_shows_in_rmse_but_not_in_ranking() -> None:
    y = np.linspace(0, 3, 20)
    scores = metrics.score(y / 2 + 1, y)
    assert scores.pairwise == 1 and scores.slope == pytest.approx(2)
    assert scores.intercept == pytest.approx(-2)
    assert scores.rmse**2 == pytest.approx(np.mean((y / 2 + 1 - y) ** 2))
    assert metrics.score(y + 1, y).centred_rmse == pytest.approx(0)


def test_pairs_within_noise_do_not_count() -> None:
    y = np.array([0.0, 0.001, 1.0])
    assert metrics.pairwise_accuracy(np.array([2.0, 1.0, 3.0]), y) == 1.0
    assert math.isnan(metrics.pairwise_accuracy(np.array([0.0, 1.0]), np.array([0.0, 0.001])))


def test_rank_correlation_gives_ties_their_mean_rank() -> None:
    y = np.log(np.array([1.0, 2.0, 2.0, 4.0, 8.0]))
    p = np.array([0.0, 1.0, 3.0, 3.0, 2.0])
    ranks = np.array([1, 2.5, 2.5, 4, 5]), np.array([1, 2, 4.5, 4.5, 3])
    assert metrics.score(p, y).spearman == pytest.approx(np.corrcoef(*ranks)[0, 1])


def test_mean_ignores_undefined_scores() -> None:
    y = np.linspace(0, 1, 5)
    both = metrics.mean([metrics.score(y, y), metrics.score(np.ones(5), y)])
    assert both.spearman == pytest.approx(1) and both.pairwise == 0.75


def test_failed_schedules_cost_only_when_predicted_too_fast() -> None:
    p = torch.tensor([1.0, 5.0, 1.0])
    y = torch.tensor([3.0, 3.0, 3.0])
    failed = torch.tensor([True, True, False])
    assert losses.regression(p, y, failed).tolist() == [1.5, 0.0, 1.5]


def test_ranking_loss_prefers_the_right_order_and_the_fast_end() -> None:
    y = torch.tensor([[0.0, 1.0, 3.0, 4.0]])
    none = torch.zeros(1, 4, dtype=torch.bool)

    def loss(*p: float) -> float:
        return losses.ranking(torch.tensor([p]).float(), y, none, 0.02).item()

    assert loss(0, 1, 3, 4) < loss(1, 0, 3, 4)
    assert loss(0, 1, 4, 3) < loss(1, 0, 3, 4)
    assert loss(5, 6, 8, 9) == pytest.approx(loss(0, 1, 3, 4))
    both_failed = torch.tensor([[True, True, True, True]])
    assert losses.ranking(torch.zeros(1, 4), y, both_failed, 0.02).item() == 0


@pytest.mark.slow("trains a model for many epochs")
def test_training_learns_a_law_that_holds_for_unseen_workloads() -> None:
    all_tasks = [task(i, 60) for i in range(14)]
    trained = train.train(features(all_tasks), all_tasks[:10], all_tasks[10:12], quick(epochs=60))
    report = evaluate.evaluate("n", evaluate.of_module(trained.model), all_tasks[12:])
    assert report.overall.pairwise > 0.85 and report.overall.spearman > 0.85
    assert trained.best_epoch > 1 and trained.line == calibration.Line()
    history = [epoch.validation_loss for epoch in trained.history]
    assert history[trained.best_epoch - 1] == min(history) < 0.5 * history[0]


@pytest.mark.parametrize("prior", [None, "f1"])
def test_a_line_of_the_validation_tasks_calibrates_and_keeps_the_order(prior: str | None) -> None:
    shape = dataclasses.replace(SMALL, prior=prior)
    all_tasks = [task(i, 30 if i < 8 else 10, shift=2.0 if i >= 6 else 0.0) for i in range(12)]
    training, validation = all_tasks[:6], all_tasks[6:]
    options = quick(epochs=10, shape=shape, calibrate=True)
    trained = train.train(features(all_tasks), training, validation, options)
    assert trained.line != calibration.Line()
    predict = evaluate.of_module(trained.model)
    errors_ = [predict(t) - t.ln_latency for t in validation]
    assert np.mean([e.mean() for e in errors_]) == pytest.approx(0, abs=1e-4)
    along = [(e * (predict(t) - 5)).mean() for e, t in zip(errors_, validation, strict=True)]
    assert np.mean(along) == pytest.approx(0, abs=1e-4)  # nothing is left along a line
    plain = train.train(
        features(all_tasks), training, validation, dataclasses.replace(options, calibrate=False)
    )
    for each in all_tasks:
        raw = evaluate.of_module(plain.model)(each)
        expected = trained.line.slope * raw + trained.line.intercept
        assert predict(each) == pytest.approx(expected, abs=1e-4)
        assert (np.argsort(predict(each)) == np.argsort(raw)).all()
    again = train.train_all(features(training), options, line=trained.line)
    plain = train.train_all(features(training), dataclasses.replace(options, calibrate=False))
    assert plain.line == calibration.Line() and again.line == trained.line
    expected = trained.line.slope * evaluate.of_module(plain.model)(training[0])
    got = evaluate.of_module(again.model)(training[0])
    assert got == pytest.approx(expected + trained.line.intercept, abs=1e-4)


def test_predictions_without_a_usable_line_stay_as_they_are() -> None:
    y, none = np.linspace(0, 3, 20), np.zeros(0)
    assert calibration.fit([]) == calibration.fit([(none, none)]) == calibration.Line()
    assert calibration.fit([(np.ones(20), y)]) == calibration.Line()
    assert calibration.fit([(-y, y)]) == calibration.Line()
    line = calibration.fit([(2 * y + 1, y), (2 * y[:3] + 1, y[:3])])
    assert (line.slope, line.intercept) == (pytest.approx(0.5), pytest.approx(-0.5))
    ups, downs = (np.zeros(2), np.ones(2)), (np.ones(200), np.full(200, 3.0))
    equal = calibration.fit([ups, downs])  # a task of 200 schedules weighs as one of two
    assert equal.slope == pytest.approx(2) and equal.intercept == pytest.approx(1)
    lone = calibration.fit(
        [(np.array([0.0, 1.0]), np.array([0.0, 1.0])), (np.full(99, 1.0), np.full(99, 2.0))]
    )
    assert lone.slope == pytest.approx(5 / 3) and lone.intercept == pytest.approx(0)


def test_training_is_deterministic_under_its_seed() -> None:
    all_tasks = [task(i) for i in range(5)]
    weights = [
        train.train(
            features(all_tasks), all_tasks[:4], all_tasks[4:], quick(epochs=3, seed=s)
        ).model.head.weight.detach()
        for s in (1, 1, 2)
    ]
    assert torch.equal(weights[0], weights[1]) and not torch.equal(weights[0], weights[2])


def test_training_stops_early_and_keeps_the_best_epoch() -> None:
    noise = np.random.default_rng(0)
    all_tasks = [
        dataclasses.replace(t, ln_latency=noise.normal(0, 1, len(t.ln_latency)))
        for t in (task(i, 30) for i in range(6))
    ]
    trained = train.train(
        features(all_tasks), all_tasks[:4], all_tasks[4:], quick(epochs=200, patience=5, lr=1e-2)
    )
    assert len(trained.history) == trained.best_epoch + 5 < 200
    parts = [train.examples(t, "exclude") for t in all_tasks[4:]]
    best = min(epoch.validation_loss for epoch in trained.history)
    assert train.validation_loss(trained.model, parts, quick()) == pytest.approx(best)


def test_gradients_are_clipped_before_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    clip, step = torch.nn.utils.clip_grad_norm_, torch.optim.AdamW.step
    monkeypatch.setattr(
        torch.nn.utils, "clip_grad_norm_", lambda *a, **k: (calls.append("clip"), clip(*a, **k))[1]
    )
    monkeypatch.setattr(
        torch.optim.AdamW, "step", lambda *a, **k: (calls.append("step"), step(*a, **k))[1]
    )
    all_tasks = [task(i) for i in range(4)]
    train.train(features(all_tasks), all_tasks, (), quick(epochs=2))
    assert calls and calls == ["clip", "step"] * (len(calls) // 2)


def test_tasks_count_equally_however_many_schedules_they_have() -> None:
    small, large = task(1, 10), task(2, 400)
    options = quick(tasks_per_step=2)
    drawn = train._draw(
        [train.examples(t, "exclude", 3) for t in (small, large)], 20, torch.Generator()
    )
    assert (
        (drawn.rows[:, 0, 11] == 1).sum() == (drawn.rows[:, 0, 11] == 2).sum() == options.per_task
    )


def test_failures_can_be_slow_examples() -> None:
    base = task(1, 10)
    ln = base.ln_latency.copy()
    ln[:3] = math.nan
    failing = dataclasses.replace(
        base, ln_latency=ln, errors=("build", "timeout", "wrong_result", *(None,) * 7)
    )
    assert len(train.examples(failing, "exclude").y) == 7
    slow = train.examples(failing, "slow")
    assert slow.failed.tolist() == [True, True] + [False] * 7
    assert slow.y[0].item() == pytest.approx(np.nanmax(ln) + math.log(2))
    trained = train.train(features([failing]), [failing], (), quick(epochs=60, failures="slow"))
    p = train.predict(trained.model, slow.rows, slow.mask)
    assert p[:2].min() > slow.y[2:].median()


@pytest.mark.parametrize("bad", [{"failures": "keep"}, {"epochs": 0}, {"per_task": 1}])
def test_bad_training_options_are_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(errors.RecordError):
        quick(**bad)


def test_calibration_needs_validation_tasks() -> None:
    with pytest.raises(errors.RecordError, match="nothing to calibrate on"):
        train.train(features([task(1)]), [task(1)], [], quick(calibrate=True))


def test_training_needs_tasks() -> None:
    with pytest.raises(errors.RecordError, match="no training tasks"):
        train.train(features([task(1)]), [], [task(1)], quick())


def test_report_as_json_and_table() -> None:
    all_tasks = [task(1, 10, "gemm"), task(2, 10, "conv2d"), task(3, 3, "gemm")]
    report = evaluate.evaluate("oracle", lambda t: t.ln_latency * 2, all_tasks)
    content = report.as_json()
    assert [t["name"] for t in content["tasks"]] == ["t1", "t2"]  # three schedules are too few
    assert content["overall"]["slope"] == pytest.approx(0.5) and set(content["operators"]) == {
        "gemm",
        "conv2d",
    }
    lines = evaluate.table([report]).splitlines()
    assert lines[1].startswith("oracle") and "1.000" in lines[1] and len(lines) == 5
    assert "t2" in evaluate.table([report], per_task=True)
    with pytest.raises(errors.RecordError, match="5 schedules"):
        evaluate.evaluate("oracle", lambda t: t.ln_latency, all_tasks[2:])


@pytest.mark.skipif(not xgboost.have_xgboost(), reason="xgboost is an optional extra")
def test_trees_learn_the_law_too() -> None:
    all_tasks = [task(i, 60) for i in range(14)]
    trees = xgboost.fit_xgboost(all_tasks[:10], all_tasks[10:12], threads=1)
    report = evaluate.evaluate("trees", trees, all_tasks[12:])
    assert report.overall.pairwise > 0.75
