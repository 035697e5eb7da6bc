"""The table of moves: held by the verbs, by the CHECK constraints, and by random histories."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, settings, stateful
from hypothesis import strategies as st
from sqlalchemy import orm

from server import errors, states
from server.database import database, models
from server.store import control, events, jobs, leases, trials
from tests.support import live_service, service_fakes, share

State = states.State


def test_the_table_is_whole() -> None:
    assert set(states.MOVES) == set(State)
    assert all(to in State for targets in states.MOVES.values() for to in targets)
    assert not states.MOVES[State.SUCCEEDED]
    reached = {State.QUEUED}
    for _ in State:
        reached |= {to for state in reached for to in states.MOVES[state]}
    assert reached == set(State)
    assert set(states.INSTRUCTIONS) == states.MAY_BE_LEASED


def test_check_follows_the_table() -> None:
    for before, after in itertools.product(State, State):
        if after in states.MOVES[before]:
            states.check(before, after)
        else:
            with pytest.raises(errors.IllegalMove, match=f"{before} cannot become {after}"):
                states.check(before, after)


def test_the_database_refuses_illegal_moves(db: database.Database) -> None:
    job = service_fakes.create(db)

    def write(before: State | None, after: State | None) -> None:
        with db.write() as tx:
            event = models.Event(
                job_id=job.id,
                seq=100,
                at=job.created_at,
                type="state",
                payload={},
                from_state=before,
                to_state=after,
            )
            tx.add(event)
            tx.flush()
            tx.delete(event)

    for before, after in itertools.product([None, *State], [None, *State]):
        legal = (before, after) in ((None, None), (None, State.QUEUED)) or (
            before is not None and after in states.MOVES[before]
        )
        if legal:
            write(before, after)
        else:
            with pytest.raises(sa.exc.IntegrityError):
                write(before, after)


@pytest.mark.parametrize(
    "change",
    [
        {"state": "lost"},
        {"state": "running"},
        {"state": "succeeded"},
        {"lease_token": "x"},
        {"lease_token": "x", "lease_expires_at": sa.func.now()},
        {"state": "paused", "finished_at": sa.func.now()},
        {"best_us": -1.0},
    ],
)
def test_the_database_refuses_impossible_jobs(db: database.Database, change: Any) -> None:
    job = service_fakes.create(db)
    with pytest.raises(sa.exc.IntegrityError), db.write() as tx:
        tx.execute(sa.update(models.Job).where(models.Job.id == job.id).values(**change))


USER_VERBS: dict[str, Callable[[orm.Session, int], Any]] = {
    "pause": control.pause,
    "resume": control.resume,
    "cancel": control.cancel,
    "stop": control.stop,
    "retry": control.retry,
}

#: What a verb of a user does to a job without trials in each state; None: nothing; else refused.
EXPECTED: dict[str, dict[State, State | None]] = {
    "pause": {State.QUEUED: State.PAUSED, State.RUNNING: State.PAUSING,
              State.PAUSING: None, State.PAUSED: None},
    "resume": {State.QUEUED: None, State.RUNNING: None,
               State.PAUSING: State.RUNNING, State.PAUSED: State.QUEUED},
    "cancel": {State.QUEUED: State.CANCELLED, State.RUNNING: State.CANCELLING,
               State.PAUSING: State.CANCELLING, State.PAUSED: State.CANCELLED,
               State.STOPPING: State.CANCELLING, State.CANCELLING: None, State.CANCELLED: None},
    "stop": {State.RUNNING: State.STOPPING, State.PAUSING: State.STOPPING, State.STOPPING: None},
    "retry": {State.FAILED: State.QUEUED, State.CANCELLED: State.QUEUED},
}  # fmt: skip


def bring(db: database.Database, state: State) -> tuple[int, leases.Fence | None]:
    """A job without trials in a state."""
    job = service_fakes.create(db)
    if state in (State.QUEUED, State.PAUSED):
        if state is State.PAUSED:
            service_fakes.write(db, control.pause, job.id)
        return job.id, None
    fence = service_fakes.claim(db).fence
    with db.write() as tx:
        match state:
            case State.PAUSING:
                control.pause(tx, job.id)
            case State.STOPPING:
                control.stop(tx, job.id)
            case State.CANCELLING | State.CANCELLED:
                control.cancel(tx, job.id)
            case State.SUCCEEDED:
                leases.succeed(tx, fence, "trials")
            case State.FAILED:
                leases.fail(tx, fence, "x", "y", None)
        if state is State.CANCELLED:
            leases.release(tx, fence)
    assert service_fakes.get(db, job.id).state is state
    return job.id, fence


@pytest.mark.parametrize("verb", USER_VERBS)
def test_what_users_can_do_in_each_state(db: database.Database, verb: str) -> None:
    for state in State:
        job_id, _ = bring(db, state)
        before = service_fakes.get(db, job_id)
        if state not in EXPECTED[verb]:
            with pytest.raises(errors.Conflict), db.write() as tx:
                USER_VERBS[verb](tx, job_id)
            assert service_fakes.get(db, job_id) == before
        else:
            after = service_fakes.write(db, USER_VERBS[verb], job_id)
            expected = EXPECTED[verb][state]
            assert after.state is (expected or state), (verb, state)
            assert after.last_seq == before.last_seq + (expected is not None)
        with db.write() as tx:  # leave nothing for the next claim
            tx.execute(sa.delete(models.Job).where(models.Job.id == job_id))


def test_a_paused_job_with_trials_can_end_early(db: database.Database) -> None:
    job, fence = service_fakes.claimed(db)
    service_fakes.add(db, fence, service_fakes.new_trial(0))
    with db.write() as tx:
        control.pause(tx, job.id)
        leases.release(tx, fence)
        assert control.stop(tx, job.id).state is State.STOPPING
    again = service_fakes.claim(db)
    assert again.job.state is State.STOPPING
    with db.write() as tx:
        assert leases.beat(tx, again.fence, 60) is states.Instruction.STOP
        assert leases.succeed(tx, again.fence, "stopped") is State.SUCCEEDED


class Histories(stateful.RuleBasedStateMachine):
    """Users, a tuner and the reaper in any order; the log must tell a legal history."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.db = live_service.empty_database(f"sqlite:///{self.folder.name}/felix.db")
        self.worker = service_fakes.worker(self.db)
        self.job_id = service_fakes.create(self.db).id
        self.fences: list[leases.Fence] = []
        self.n_written = 0

    def teardown(self) -> None:
        self.db.close()
        self.folder.cleanup()

    def attempt(self, verb: Callable[[orm.Session], Any]) -> Any:
        before = service_fakes.get(self.db, self.job_id)
        try:
            return service_fakes.write(self.db, verb)
        except errors.Conflict:
            assert service_fakes.get(self.db, self.job_id) == before
            return None

    @stateful.rule(verb=st.sampled_from(sorted(USER_VERBS)))
    def a_user_acts(self, verb: str) -> None:
        self.attempt(lambda tx: USER_VERBS[verb](tx, self.job_id))

    @stateful.rule(lease_s=st.sampled_from([-1.0, 60.0]))
    def a_tuner_claims(self, lease_s: float) -> None:
        keys = service_fakes.TARGET_KEYS
        claim = self.attempt(lambda tx: leases.claim(tx, self.worker, keys, lease_s))
        if claim is not None:
            self.fences.append(claim.fence)

    @stateful.rule(which=st.integers(0, 3))
    def a_tuner_writes(self, which: int) -> None:
        if self.fences:
            fence = self.fences[-1 - which % len(self.fences)]
            new = service_fakes.new_trial(self.n_written)
            if self.attempt(lambda tx: trials.append(tx, fence, new)) is not None:
                self.n_written += 1
                assert fence is self.fences[-1]  # only the newest lease may write

    @stateful.rule(
        which=st.integers(0, 3), how=st.sampled_from(["succeed", "release", "fail", "later"])
    )
    def a_tuner_ends(self, which: int, how: str) -> None:
        if not self.fences:
            return
        fence = self.fences[-1 - which % len(self.fences)]
        verbs: dict[str, Callable[[orm.Session], Any]] = {
            "succeed": lambda tx: leases.succeed(tx, fence, "trials"),
            "release": lambda tx: leases.release(tx, fence),
            "fail": lambda tx: leases.fail(tx, fence, "e", "m", None),
            "later": lambda tx: leases.fail(tx, fence, "e", "m", 0.0),
        }
        self.attempt(verbs[how])

    @stateful.rule()
    def the_reaper_comes(self) -> None:
        self.attempt(lambda tx: leases.reap(tx, max_attempts=3))

    @stateful.invariant()
    def the_log_tells_the_state(self) -> None:
        with self.db.read() as tx:
            job, log = jobs.get(tx, self.job_id), events.after(tx, self.job_id, limit=10_000)
        assert [e.seq for e in log] == list(range(1, job.last_seq + 1))
        state = None
        for event in log:
            if event.to_state is not None:
                assert event.from_state == state
                state = event.to_state
        assert state == job.state
        assert job.n_trials == self.n_written == sum(e.type == "trial" for e in log)


Histories.TestCase.settings = settings(
    max_examples=share.rounds(8, 30),
    stateful_step_count=20,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
test_histories = Histories.TestCase
