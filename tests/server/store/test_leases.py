"""Claims, fences and the reaper, with many tuners at once, on SQLite and on PostgreSQL."""

from __future__ import annotations

import collections
import random
import threading
import time
from collections.abc import Callable

import pytest
import sqlalchemy as sa

from server import errors, states, upkeep
from server.database import columns, database, models
from server.store import control, events, job_lists, jobs, leases, progress, trials
from tests.support import service_fakes, share

State = states.State


def test_the_most_urgent_job_goes_first(db: database.Database) -> None:
    low, high, later = (service_fakes.create(db, priority=p).id for p in (0, 5, 5))
    worker = service_fakes.worker(db)
    order = [service_fakes.claim(db, by=worker).job.id for _ in range(3)]
    assert order == [high, later, low]
    assert service_fakes.write(db, leases.claim, worker, service_fakes.TARGET_KEYS, 60) is None


def test_only_fitting_devices_claim(db: database.Database) -> None:
    service_fakes.create(db, target_key="cuda/sm_90")
    worker = service_fakes.worker(db)
    with db.write() as tx:
        assert leases.claim(tx, worker, ["llvm", "llvm/test"], 60) is None
        claim = leases.claim(tx, worker, ["cuda", "cuda/sm_90"], 60)
        assert claim is not None
        leases.begin(tx, claim.fence, "cuda/sm_90/H100", "resolved")
        leases.release(tx, claim.fence)
        assert leases.claim(tx, worker, ["cuda", "cuda/sm_90"], 60) is None
        again = leases.claim(tx, worker, ["cuda/sm_90/H100"], 60)
    assert again is not None and again.job.resolved_target == "resolved"


def test_a_beat_renews_and_brings_orders(db: database.Database) -> None:
    job = service_fakes.create(db)
    fence = service_fakes.claim(db, lease_s=5).fence

    def beat() -> states.Instruction:
        return service_fakes.write(db, leases.beat, fence, 1000)

    before = service_fakes.get(db, job.id).lease_expires_at
    assert beat() is states.Instruction.CONTINUE
    after = service_fakes.get(db, job.id).lease_expires_at
    assert before is not None and after is not None and (after - before).total_seconds() > 900
    for verb, order in (
        (control.pause, states.Instruction.PAUSE),
        (control.resume, states.Instruction.CONTINUE),
        (control.stop, states.Instruction.STOP),
        (control.cancel, states.Instruction.CANCEL),
    ):
        service_fakes.write(db, verb, job.id)
        assert beat() is order
    assert service_fakes.write(db, leases.release, fence) is State.CANCELLED
    assert beat() is states.Instruction.LEASE_LOST


@pytest.mark.parametrize(
    ("order", "state"),
    [
        (None, State.QUEUED),
        (control.pause, State.PAUSED),
        (control.cancel, State.CANCELLED),
        (control.stop, State.STOPPING),
    ],
)
@pytest.mark.parametrize("how", ["release", "reap"])
def test_what_becomes_of_a_job_let_go(
    db: database.Database, how: str, order: Callable[..., object] | None, state: State
) -> None:
    job = service_fakes.create(db)
    fence = service_fakes.claim(db, lease_s=-1 if how == "reap" else 60).fence
    with db.write() as tx:
        if order is not None:
            order(tx, job.id)
        if how == "reap":
            assert leases.reap(tx, max_attempts=5) == {job.id: state}
        else:
            assert leases.release(tx, fence) is state
    after = service_fakes.get(db, job.id)
    assert after.state is state
    assert after.lease_expires_at is None and after.worker_id is None
    assert after.attempts == (1 if how == "reap" else 0)


def zombie_verbs() -> dict[str, Callable[..., object]]:
    """Every write of a tuner."""
    saved = progress.Checkpoint(0, {}, None)
    return {
        "append": lambda tx, f: trials.append(tx, f, service_fakes.new_trial(9)),
        "repeat": lambda tx, f: trials.remeasure(tx, f, service_fakes.new_trial(0)),
        "started": lambda tx, f: progress.started(tx, f, [], {}),
        "opened": lambda tx, f: progress.opened(tx, f, 0, 1, 1.0),
        "baseline": lambda tx, f: progress.baseline(tx, f, 0, 1.0, ""),
        "round": lambda tx, f: progress.round_started(tx, f, 0, 0, {}, []),
        "trained": lambda tx, f: progress.trained(tx, f, {"n_records": 1}),
        "save": lambda tx, f: progress.save(tx, f, saved, 1.0, {}),
        "begin": lambda tx, f: leases.begin(tx, f, "x", "y"),
        "release": leases.release,
        "succeed": lambda tx, f: leases.succeed(tx, f, "trials"),
        "fail": lambda tx, f: leases.fail(tx, f, "e", "m", None),
    }


def test_a_zombie_writes_nothing(db: database.Database) -> None:
    job = service_fakes.create(db)
    zombie = service_fakes.claim(db, lease_s=-1).fence
    service_fakes.add(db, zombie, service_fakes.new_trial(0))  # late, but nobody took over yet
    service_fakes.write(db, leases.reap, max_attempts=5)
    holder = service_fakes.claim(db).fence
    stolen = leases.Fence(job.id, "")
    before = service_fakes.get(db, job.id)
    for name, verb in zombie_verbs().items():
        for fence in (zombie, stolen, leases.Fence(job.id + 1, holder.token)):
            with pytest.raises(errors.LeaseLost), db.write() as tx:
                verb(tx, fence)
            assert service_fakes.get(db, job.id) == before, name
    with db.write() as tx:
        assert leases.beat(tx, zombie, 60) is states.Instruction.LEASE_LOST
        assert leases.succeed(tx, holder, "trials") is State.SUCCEEDED
    assert errors.LeaseLost.status == 409
    for verb in zombie_verbs().values():  # and an ended job takes nothing from its last holder
        with pytest.raises(errors.LeaseLost), db.write() as tx:
            verb(tx, holder)


def test_fences_do_not_show_their_token(db: database.Database) -> None:
    service_fakes.create(db)
    claim = service_fakes.claim(db)
    assert claim.fence.token not in repr(claim)


def test_a_job_whose_tuners_die_fails_in_the_end(db: database.Database) -> None:
    job = service_fakes.create(db)
    for attempt in range(1, 4):
        service_fakes.claim(db, lease_s=-1)
        state = State.QUEUED if attempt < 3 else State.FAILED
        assert upkeep.reap(db, max_attempts=3) == {job.id: state}
    after = service_fakes.get(db, job.id)
    assert (after.error, after.attempts) == ("lease_expired", 3)
    assert after.message is not None and "attempt 3" in after.message
    assert upkeep.reap(db, max_attempts=3) == {}
    fresh = service_fakes.write(db, control.retry, job.id)
    assert (fresh.state, fresh.attempts, fresh.error) == (State.QUEUED, 0, None)


def test_a_failed_attempt_waits_before_the_next(db: database.Database) -> None:
    job = service_fakes.create(db)
    worker = service_fakes.worker(db)
    fence = service_fakes.claim(db, by=worker).fence
    with db.write() as tx:
        assert leases.fail(tx, fence, "infrastructure", "disk", 3600) is State.QUEUED
        assert leases.claim(tx, worker, service_fakes.TARGET_KEYS, 60) is None
    assert service_fakes.get(db, job.id).message == "disk"
    with db.write() as tx:
        tx.execute(sa.update(models.Job).values(not_before=columns.db_now(-1)))
        assert leases.claim(tx, worker, service_fakes.TARGET_KEYS, 60) is not None


def test_a_cancelled_job_cannot_succeed(db: database.Database) -> None:
    job, fence = service_fakes.claimed(db)
    with db.write() as tx:
        control.cancel(tx, job.id)
        assert leases.succeed(tx, fence, "trials") is State.CANCELLED


N_TUNERS, N_JOBS, N_TRIALS = 12, share.rounds(6, 12), 4


def test_twelve_tuners_with_zombies_and_a_reaper(db: database.Database) -> None:
    """Each job is worked on by one tuner at a time, whatever dies, and ends once."""
    job_ids = [service_fakes.create(db).id for _ in range(N_JOBS)]
    working: collections.Counter[int] = collections.Counter()
    guard, done = threading.Lock(), threading.Event()
    accepted: list[tuple[int, int]] = []
    refused: list[int] = []
    problems: list[BaseException] = []

    def write(fence: leases.Fence, number: int) -> None:
        service_fakes.add(db, fence, service_fakes.new_trial(number))
        with guard:
            accepted.append((fence.job_id, number))

    def work(rng: random.Random, worker: int) -> None:
        claim = service_fakes.write(db, leases.claim, worker, service_fakes.TARGET_KEYS, 60)
        if claim is None:
            time.sleep(0.01)
            return
        fence, job_id = claim.fence, claim.job.id
        with guard:
            working[job_id] += 1
            assert working[job_id] == 1, "two tuners hold one job"
        start = claim.job.n_trials
        for number in range(start, N_TRIALS):
            if rng.random() < 0.15:  # it "dies": the lease expires and the reaper comes
                with guard:
                    working[job_id] -= 1
                service_fakes.write(db, leases.beat, fence, -1)
                while (
                    not upkeep.reap(db, 1000) and service_fakes.get(db, job_id).worker_id == worker
                ):
                    time.sleep(0.005)
                try:  # and wakes as a zombie
                    service_fakes.add(db, fence, service_fakes.new_trial(number))
                    problems.append(AssertionError("a zombie wrote"))
                except errors.LeaseLost:
                    refused.append(job_id)
                return
            write(fence, number)
        with guard:
            working[job_id] -= 1
        service_fakes.write(db, leases.succeed, fence, "trials")

    def tuner(seed: int) -> None:
        rng, worker = random.Random(seed), service_fakes.worker(db, f"t{seed}")
        try:
            while not done.is_set():
                work(rng, worker)
        except BaseException as error:
            problems.append(error)

    threads = [threading.Thread(target=tuner, args=(seed,)) for seed in range(N_TUNERS)]
    for thread in threads:
        thread.start()
    deadline_s = time.monotonic() + 90
    while time.monotonic() < deadline_s and not problems:
        with db.read() as tx:
            if job_lists.counts(tx)[State.SUCCEEDED] == N_JOBS:
                break
        time.sleep(0.05)
    done.set()
    for thread in threads:
        thread.join()
    assert not problems
    assert refused, "no zombie was tried: the test shows nothing"
    assert len(accepted) == len(set(accepted)) == N_JOBS * N_TRIALS
    with db.read() as tx:
        for job_id in job_ids:
            job = jobs.get(tx, job_id)
            assert (job.state, job.n_trials) == (State.SUCCEEDED, N_TRIALS)
            numbers = [t.number for t in trials.page(tx, job_id).items]
            assert numbers == list(range(1, N_TRIALS + 1))


def test_readers_miss_no_event_while_writers_write(db: database.Database) -> None:
    job, fence = service_fakes.claimed(db)
    done = threading.Event()

    def write(first: int) -> None:
        for number in range(first, first + 10):
            service_fakes.add(db, fence, service_fakes.new_trial(number))

    writers = [threading.Thread(target=write, args=(100 * i,)) for i in range(4)]
    sequence: list[int] = []

    def read() -> None:
        while True:
            finished = done.is_set()
            newer = service_fakes.read(db, events.after, job.id, sequence[-1] if sequence else 0)
            sequence.extend(event.seq for event in newer)
            if finished and not newer:
                return

    reader = threading.Thread(target=read)
    reader.start()
    for thread in writers:
        thread.start()
    for thread in writers:
        thread.join()
    done.set()
    reader.join()
    assert sequence == list(range(1, 2 + 40 + 1))
