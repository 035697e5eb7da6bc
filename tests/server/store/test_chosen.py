"""What ships of a task, in the store: latencies, counts, events, speed-ups."""

from __future__ import annotations

import pytest

from felix.tuning import results
from server.database import database
from server.store import events, jobs, plot_points, progress, rows, trials
from tests.support import service_fakes


def test_the_unscheduled_program_is_the_best_where_it_ships(db: database.Database) -> None:
    job = service_fakes.create(db, n_tasks=2)
    claim = service_fakes.claim(db)
    for task in (0, 1):
        service_fakes.add(db, claim.fence, service_fakes.new_trial(task, 10.0, task=task))
    with db.write() as tx:
        progress.baseline(tx, claim.fence, 0, 6.0, "")
        progress.baseline(tx, claim.fence, 1, 90.0, "")
        progress.chosen(tx, claim.fence, 0, 10.0, 5.0, True)
        progress.chosen(tx, claim.fence, 1, 10.0, 80.0, False)
    after = service_fakes.get(db, job.id)
    assert (after.best_us, after.unscheduled_us) == (5.0 + 2 * 10.0, 5.0 + 2 * 80.0)
    assert after.n_unscheduled == 1
    with db.read() as tx:
        first, second = jobs.tasks(tx, job.id)
        chosen = events.after(tx, job.id, kinds=[events.Type.CHOSEN])
        assert plot_points.curve(tx, job.id)[-1].best_us == after.best_us
        assert len(list(trials.stream(tx, job.id))) == 2
    assert (first.ships_unscheduled, first.best_us, first.speedup) == (True, 5.0, 1.0)
    assert (second.ships_unscheduled, second.best_us, second.speedup) == (False, 10.0, 8.0)
    assert [event.payload["curve_us"] for event in chosen] == [25.0, 25.0]


@pytest.mark.parametrize(
    ("unscheduled_us", "speedup"), [(None, None), (50.0, 5.0), (9.8, 1.0), (5.0, 0.5)]
)
def test_a_tie_is_no_slowdown(unscheduled_us: float | None, speedup: float | None) -> None:
    assert rows.TIE == results.TIE
    assert rows._speedup(unscheduled_us, 10.0) == speedup
    if unscheduled_us is not None:
        assert results.speedup(unscheduled_us, 10.0) == speedup
