"""A run on a simulated builder and runner, on a simulated clock, that crashes at any step.

What a candidate takes, what it gives and whether it fails follows from its decisions.
"""

from __future__ import annotations

import pathlib
import random
import shutil
from collections.abc import Callable
from typing import Any

import pytest

from felix.database import records
from felix.runner import protocol
from felix.tuning import pacing, pending, run
from tests.support import share
from tests.support import tuning_fakes as fakes

TRIALS = 32
TASKS = (64, 128)


class Crash(BaseException):
    """The process is gone."""


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> fakes.Clock:
    """Synthetic sketches, and a clock on which only measuring takes time."""
    fakes.use(monkeypatch)
    made = fakes.Clock()
    monkeypatch.setattr(pacing, "Clock", lambda: made)
    return made


def _measured(program: Any) -> float | protocol.ErrorClass:
    """A latency with noise, or a fault."""
    if not isinstance(program, fakes.Program):
        return fakes.UNSCHEDULED_US
    drawn = random.Random(repr(program))
    if drawn.random() < 0.2:
        return drawn.choice([protocol.ErrorClass.BUILD, protocol.ErrorClass.WRONG_RESULT])
    return fakes.latency_us(program) * drawn.uniform(0.95, 1.05)


def _tuned(out: pathlib.Path, clock: fakes.Clock, resume: bool = False, **more: Any) -> Any:
    pool = fakes.Pool(_measured, 0.5, clock.wait)
    tasks = [fakes.task(m) for m in TASKS]
    options = {"n_remeasured": 2, **more}
    return fakes.tune(tasks, pool, options, out=out, trials=TRIALS, resume=resume)


def _told(result: Any) -> list[tuple[Any, ...]]:
    """All that a run found, but for when."""
    return [
        (each.task_key, each.key, each.round, each.repeat, each.predicted_us, each.measurement)
        for task in result.results
        for each in task.records
    ]


#: What a run does, by what does it.
STEPS = {
    "ask": (run.Run, "choose_task"),
    "submit": (run.Run, "submit"),
    "take": (run.Run, "collect"),
    "record": (pending.Recorder, "trial"),
    "write": (records.Writer, "append"),
    "end a round": (run.Run, "end_round"),
    "learn": (run.Run, "learn"),
    "save": (run.Run, "save"),
    "measure again": (pending.Recorder, "repeat"),
}


def _crash_at(
    monkeypatch: pytest.MonkeyPatch, step: str, call: int, is_after: bool
) -> Callable[[], None]:
    """Let a step's call of this number end the run, before or after it; what undoes that."""
    owner, name = STEPS[step]
    usual, count = getattr(owner, name), 0

    def crashing(*args: Any, **options: Any) -> Any:
        nonlocal count
        count += 1
        if count == call and not is_after:
            raise Crash
        result = usual(*args, **options)
        if count == call:
            raise Crash
        return result

    monkeypatch.setattr(owner, name, crashing)
    return lambda: monkeypatch.setattr(owner, name, usual)


@pytest.mark.parametrize(
    ("step", "call", "is_after"),
    share.of([(s, c, a) for s in STEPS for c in (1, 2) for a in (False, True)], 3),
)
def test_a_crash_at_any_step_loses_nothing(
    step: str,
    call: int,
    is_after: bool,
    clock: fakes.Clock,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    undo = _crash_at(monkeypatch, step, call, is_after)
    with pytest.raises(Crash):
        _tuned(tmp_path / "first", clock)
    undo()
    log = tmp_path / "first" / "tuning" / "records.jsonl"
    before = list(records.read(log)) if log.exists() else []
    shutil.copytree(tmp_path / "first", tmp_path / "second")
    results = [_tuned(tmp_path / name, clock, resume=True) for name in ("first", "second")]
    assert _told(results[0]) == _told(results[1])
    after = list(records.read(log))
    assert after[: len(before)] == before
    trials = [(each.task_key, each.key) for each in after if not each.repeat]
    assert len(trials) == TRIALS == len(set(trials))
    assert results[0].reason == "trials"


def test_one_seed_gives_one_run(clock: fakes.Clock, tmp_path: pathlib.Path) -> None:
    first = _tuned(tmp_path / "first", clock)
    assert _told(first) == _told(_tuned(tmp_path / "second", clock))
    found = {each.measured.error for task in first.results for each in task.records}
    assert found == {None, protocol.ErrorClass.BUILD, protocol.ErrorClass.WRONG_RESULT}
    rounds = [(each.round, each.elapsed_s) for each in first.results[0].records]
    assert rounds == sorted(rounds)


def test_a_run_that_ended_does_not_go_on(clock: fakes.Clock, tmp_path: pathlib.Path) -> None:
    ended = _tuned(tmp_path, clock)
    assert _told(_tuned(tmp_path, clock, resume=True)) == _told(ended)
