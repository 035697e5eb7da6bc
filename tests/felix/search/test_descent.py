"""Descents: in bounds, legal, together as alone, from the most promising seeds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from felix.search import descent, gradient, scoring
from tests.support import synthetic
from tests.support.synthetic import gradient_search, two_sketches

torch.set_num_threads(1)


def test_only_the_gradient_search_descends(monkeypatch: pytest.MonkeyPatch) -> None:
    sketches, model = [synthetic.FakeSketch()], synthetic.CostModel()
    steps = descent.DescentOptions(steps=4)
    sizes = gradient.GradientOptions(n_warm_rounds=0, descent=steps)
    descending = gradient.GradientSearch(sketches, model, sizes, 1)
    assert len(descending.ask(4)) == 4 and descending.descent_steps
    monkeypatch.delattr(descent, "MergedProgram")
    sizes = gradient.GradientOptions(n_warm_rounds=0, n_structures=0)
    still = gradient.GradientSearch(sketches, model, sizes, 1)
    assert len(still.ask(4)) == 4 and still.descent_steps == []


def test_torch_threads_are_given_back() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        descend(steps=1)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def descend(capacity: int = 1024, **options: float) -> descent.Visited:
    sketch = synthetic.FakeSketch(capacity=capacity, extents=(512, 512))
    scorer = scoring.Scorer([sketch], synthetic.CostModel())
    wide = {"hot": 0.5, "learning_rate": 0.2}
    runner = descent.Descent(scorer, descent.DescentOptions(**(wide | options)))
    (visited,) = runner.run([descent.Entry(0, (), sketch.sample(8, seed=0))])
    return visited


def test_descent_lowers_the_prediction_and_stays_in_bounds() -> None:
    visited = descend(steps=150, record_every=50)
    assert visited.values.shape == (4 * 8, 10) and visited.predicted.shape == (4 * 8,)
    assert visited.predicted[-8:].mean() < 0.1 * visited.predicted[:8].mean()
    assert visited.values[:, :8].min() >= 1 - 1e-9
    np.testing.assert_allclose(visited.values[:, :4].prod(axis=1), 512)


def test_the_penalty_keeps_the_constraint() -> None:
    """The optimum wants 16 * 4 in the inner parts; the capacity allows 16."""
    free = descend(steps=200)
    held = descend(capacity=16, steps=200)
    assert np.median(free.values[-8:, 2] * free.values[-8:, 3]) > 40
    inner = held.values[-8:, 2] * held.values[-8:, 3]
    assert (inner < 16 * 1.1).all() and np.median(inner) > 12


def test_options_of_the_descent_change_it() -> None:
    base_line = descend(steps=20, record_every=20).predicted
    for option, value in [
        ("learning_rate", 0.02),
        ("hot", 5.0),
        ("final_learning_rate", 0.2),
        ("cold", 0.4),
    ]:
        changed = descend(steps=20, record_every=20, **{option: value}).predicted
        assert not np.array_equal(changed, base_line), option


def test_all_entries_descend_in_one_program_as_they_would_alone() -> None:
    """Merging sketches changes the cost of a step, not where the seeds go."""
    sketches = two_sketches()
    scorer = scoring.Scorer(sketches, synthetic.CostModel())
    options = descent.DescentOptions(steps=30, record_every=30)
    rows = sketches[0].sample(20, seed=1)
    rows[:, -1] = 2
    entries = [descent.Entry(0, (2,), rows[:4]), descent.Entry(1, (), sketches[1].sample(3, 1))]
    together = descent.Descent(scorer, options).run(entries)
    for entry, visited in zip(entries, together, strict=True):
        (alone,) = descent.Descent(scorer, options).run([entry])
        np.testing.assert_allclose(visited.values, alone.values, rtol=1e-6)
        np.testing.assert_allclose(visited.predicted, alone.predicted, rtol=1e-4, atol=1e-4)


def test_rows_that_do_not_exist_are_masked() -> None:
    rows = torch.tensor([[[1.0, 2.0], [0.0, 0.0]]])
    assert scoring.row_mask(rows).tolist() == [[1.0, 0.0]]


def test_a_model_that_returns_nan_gradients_does_not_break_the_descent() -> None:
    class Broken(torch.nn.Module):
        def forward(self, rows: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            return torch.sqrt(rows[..., 0].sum(1) * 0.0)  # infinite slope times zero

    sketch = synthetic.FakeSketch()
    search = gradient.GradientSearch(
        [sketch],
        Broken(),
        gradient.GradientOptions(n_warm_rounds=0, descent=descent.DescentOptions(steps=5)),
    )
    assert len(search.ask(4)) == 4


@pytest.mark.parametrize("n_warm_rounds", [0, 1, 2])
def test_warm_up_rounds_do_not_descend(n_warm_rounds: int) -> None:
    search = gradient_search(two_sketches(), n_warm_rounds=n_warm_rounds)
    descended = []
    for _ in range(3):
        assert len(search.ask(6)) == 6
        descended.append(bool(search.descent_steps))
    assert descended == [number >= n_warm_rounds for number in range(3)]


def noted(monkeypatch: pytest.MonkeyPatch, search: gradient.GradientSearch) -> list[descent.Entry]:
    """The entries that descend from now on."""
    run = search._descent.run
    descended: list[descent.Entry] = []

    def noting(entries: Any) -> Any:
        descended.extend(entries)
        return run(entries)

    monkeypatch.setattr(search._descent, "run", noting)
    return descended


@pytest.mark.parametrize(("n_structures", "n_seeds"), [(1, 3), (2, 4), (3, 2)])
def test_a_late_descent_has_few_structures_of_all_sketches(
    n_structures: int, n_seeds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    sketches = [
        synthetic.FakeSketch(extents=(64,), structural=(-1, 0, 1)),
        synthetic.FakeSketch(extents=(64, 32)),
    ]
    options = gradient.GradientOptions(
        n_structures=n_structures, n_seeds=n_seeds, n_warm_rounds=0, n_new_structures=3
    )
    search = gradient.GradientSearch(sketches, synthetic.CostModel(), options, 0)
    descended = noted(monkeypatch, search)
    best: list[Any] = []
    seeds = search._best

    def before(pool: Any) -> Any:
        best.extend(pool.apart(2 * n_seeds, search.options.n_moves_apart))
        return seeds(pool)

    monkeypatch.setattr(search, "_best", before)
    search.ask(8)
    assert 1 <= len(descended) <= n_structures
    expected = list(dict.fromkeys((c.sketch_index, c.structure) for c in best))[:n_structures]
    assert [(e.sketch_index, e.structure) for e in descended] == expected
    for entry in descended:
        of_entry = (entry.sketch_index, entry.structure)
        same = [c.decisions for c in best if (c.sketch_index, c.structure) == of_entry]
        assert [tuple(row) for row in entry.starts.tolist()] == same[:n_seeds]


def test_no_point_is_surrounded_twice_in_a_round(monkeypatch: pytest.MonkeyPatch) -> None:
    search = gradient.GradientSearch(
        two_sketches(), synthetic.CostModel(), gradient.GradientOptions(n_warm_rounds=0), 0
    )
    surrounded: list[tuple[int, ...]] = []
    for index, moves in enumerate(search._moves):

        def around(row: Any, index: int = index, real: Any = moves.around) -> Any:
            surrounded.append((index, *row))
            return real(row)

        monkeypatch.setattr(moves, "around", around)
    search.ask(8)
    options = search.options
    assert len(surrounded) == len(set(surrounded))
    assert len(surrounded) == options.n_polished * (options.n_before + options.n_polish)


def test_a_late_descent_starts_from_the_best_that_polishing_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    search = gradient_search(
        [synthetic.FakeSketch(extents=(512, 512))], n_before=2, n_seeds=4, n_warm_rounds=0
    )
    starts = noted(monkeypatch, search)
    polished: list[Any] = []
    polish = search._polish

    def before(pool: Any, generations: int) -> None:
        polish(pool, generations)
        polished.append((generations, [c.decisions for c in pool.apart(4, 2)]))

    monkeypatch.setattr(search, "_polish", before)
    search.ask(4)
    (entry,) = starts
    assert [generations for generations, _ in polished] == [2, search.options.n_polish]
    assert [tuple(row) for row in entry.starts.tolist()] == polished[0][1]
