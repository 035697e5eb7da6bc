"""Searching sketches of traces and of templates together: each kind has features and a model."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from benchmarks.support.searches import baselines
from costmodel.models import analytic_time
from felix.features.kind import FeatureKind
from felix.search import base, build_time, descent, gradient, interface, scoring, selection
from felix.search import history as history_module
from felix.templates import spec
from tests.support import synthetic
from tests.support.templates import naive_gemm

torch.set_num_threads(1)
TEMPLATE = naive_gemm.sketch(index=2)
TRACES = [synthetic.FakeSketch(structural=(-1, 0)), synthetic.FakeSketch(extents=(64, 12))]


class Shifted(torch.nn.Module):
    """A model of traces whose predictions are off by a factor; notes the rows that it is shown."""

    def __init__(self, shift: float = 0.0) -> None:
        super().__init__()
        self.shift = shift
        self.widths: set[int] = set()

    def forward(self, rows: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        self.widths.add(rows.shape[-1])
        return self.shift + (rows[..., 0] * mask).sum(dim=1)


def models(shift: float = 0.0) -> dict[FeatureKind, torch.nn.Module]:
    return {
        FeatureKind.TRACE: Shifted(shift),
        FeatureKind.TEMPLATE: analytic_time.AnalyticTime(spec.NAMES, "analytic_us"),
    }


def template_us(decisions: tuple[int, ...]) -> float:
    raw = TEMPLATE.formulas.raw(np.asarray([decisions]))
    return float(raw[..., spec.NAMES.index("analytic_us")].sum())


MAKE: dict[str, Callable[..., base.BaseSearch]] = {
    "gradient": lambda sketches, of, seed: gradient.GradientSearch(
        sketches,
        of,
        gradient.GradientOptions(n_samples=32, descent=descent.DescentOptions(steps=16)),
        seed,
    ),
    "evolutionary": lambda sketches, of, seed: baselines.EvolutionarySearch(
        sketches, of, baselines.EvolutionOptions(population=48), seed
    ),
    "random": baselines.RandomSearch,
}


@pytest.mark.parametrize("kind", MAKE)
def test_every_search_proposes_both(kind: str) -> None:
    sketches = [*TRACES, TEMPLATE]
    search, again = (MAKE[kind](sketches, models(), 5) for _ in range(2))
    scorer = scoring.Scorer(sketches, models())
    proposed: set[interface.Key] = set()
    for _ in range(2):
        candidates = search.ask(12)
        assert candidates == again.ask(12) and len(candidates) == 12
        for each in candidates:
            assert each.key not in proposed
            proposed.add(each.key)
            assert scorer.legal(each.sketch_index, np.asarray([each.decisions]))[0]
            if each.sketch_index == 2 and each.predicted_us is not None:
                assert each.predicted_us == pytest.approx(template_us(each.decisions), rel=1e-4)
    assert {index == 2 for index, _ in proposed} == {True, False}


def test_each_model_sees_its_own_features() -> None:
    of = models()
    scorer = scoring.Scorer([*TRACES, TEMPLATE], of)
    descent.Descent(scorer, descent.DescentOptions(steps=4)).run(_entries())
    for index, sketch in enumerate(scorer.sketches):
        scorer.predict(index, sketch.sample(4, 1))
    assert of[FeatureKind.TRACE].widths == {12}  # type: ignore[union-attr]
    with pytest.raises(KeyError):
        scoring.Scorer([TEMPLATE], {FeatureKind.TRACE: Shifted()}).predict(
            0, TEMPLATE.sample(4, 1)
        )


def _entries() -> list[descent.Entry]:
    """A trace, the template, another trace: of one kind, not side by side."""
    rows = TRACES[0].sample(4, 1)
    rows[:, -1] = 0
    return [
        descent.Entry(0, (0,), rows),
        descent.Entry(2, (), TEMPLATE.sample(4, 2)),
        descent.Entry(1, (), TRACES[1].sample(4, 3)),
    ]


def test_a_descent_of_both_kinds_is_that_of_each() -> None:
    scorer = scoring.Scorer([*TRACES, TEMPLATE], models())
    options = descent.DescentOptions(steps=12)
    together = descent.Descent(scorer, options)
    visited = together.run(_entries())
    assert together.steps[-1].loss < together.steps[0].loss
    for entry, both in zip(_entries(), visited, strict=True):
        (alone,) = descent.Descent(scorer, options).run([entry])
        np.testing.assert_allclose(both.values, alone.values, rtol=1e-6)
        np.testing.assert_allclose(both.predicted, alone.predicted, rtol=1e-5, atol=1e-5)


def test_a_template_is_descended_to_its_optimum() -> None:
    search = MAKE["gradient"]([TEMPLATE], models(), 0)
    best = min(template_us(s.decisions) for _ in range(3) for s in search.ask(8))
    rows = TEMPLATE.sample(1000, 1)
    raw = TEMPLATE.formulas.raw(rows)[..., spec.NAMES.index("analytic_us")].sum(axis=1)
    assert best == pytest.approx(raw.min(), rel=1e-9)


def sampled(search: base.BaseSearch, n: int) -> selection.Pool:
    """A pool of n samples of each sketch."""
    pool = selection.Pool(search.scorer, history_module.History())  # type: ignore[attr-defined]
    for index, sketch in enumerate(search.sketches):
        pool.add(index, sketch.sample(n, 3).tolist(), selection.Source.SAMPLE)
    return pool


@pytest.mark.parametrize("shift", [-60.0, 60.0])
def test_a_first_round_measures_both_kinds_whatever_the_models_say(shift: float) -> None:
    search = MAKE["gradient"]([*TRACES, TEMPLATE], models(shift), 1)
    first = [s.sketch_index == 2 for s in search.ask(8)]
    assert 1 <= sum(first) <= 7
    pool = sampled(search, 40)
    shares = {"max_similar": 99, "random_share": 0.0, "structure_share": 1.0, "variant_share": 1.0}
    options = selection.SelectionOptions(**shares, kind_share=0.0)
    picked = selection.select(pool, 16, options, np.random.default_rng(0))
    assert {c.sketch_index == 2 for c in picked} == {shift > 0}
    options = selection.SelectionOptions(**shares, kind_share=0.25)
    picked = selection.select(pool, 16, options, np.random.default_rng(0))
    assert sorted((sum(c.sketch_index == 2 for c in picked), 16)) in ([4, 16], [12, 16])


def test_a_template_says_itself_how_long_it_builds() -> None:
    features = TEMPLATE.formulas.exact(TEMPLATE.sample(5, 1))
    cost = build_time.BuildCost.of(TEMPLATE, features)
    assert not cost.statements.any() and not cost.compile_s.any()

    class Slow:
        kind = FeatureKind.TEMPLATE
        names = ("build_s",)

    class Sketch:
        is_gpu = True
        formulas = Slow()

    cost = build_time.BuildCost.of(Sketch(), np.log2(1 + np.full((2, 3, 1), 0.5)))  # type: ignore
    assert cost.compile_s == pytest.approx([1.5, 1.5])


def test_more_samples_of_a_template_are_considered() -> None:
    for n_samples, n_template_samples in ((32, 100), (32, 40)):
        options = gradient.GradientOptions(
            n_samples=n_samples, n_template_samples=n_template_samples
        )
        search = gradient.GradientSearch([TRACES[1], TEMPLATE], models(), options)
        search.ask(4)
        sampled = {index: len(rows) for index, rows in search.state_dict()["samples"]}
        assert sampled == {0: n_samples, 1: n_template_samples}


def test_a_template_need_not_leave_picks_to_other_structures() -> None:
    search = MAKE["gradient"]([*TRACES, TEMPLATE], models(60.0), 1)
    pool = sampled(search, 100)
    options = selection.SelectionOptions(
        random_share=0.0, structure_share=0.5, max_similar=99, kind_share=0.0
    )
    picked = selection.select(pool, 20, options, np.random.default_rng(0))
    assert sum(c.sketch_index == 2 for c in picked) == 17  # a variant has 0.85 of the picks
    failed = [(i, row) for i, row in pool.candidates if i == 2][:30]
    pool.past.measured.update(dict.fromkeys(failed))
    picked = selection.select(pool, 20, options, np.random.default_rng(0))
    assert sum(c.sketch_index == 2 for c in picked) == 3  # most failed: what others may not take
