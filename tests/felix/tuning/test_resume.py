"""Runs that are interrupted, and sessions that go on."""

from __future__ import annotations

import pathlib
from typing import Any

import pytest

from felix import errors, events
from felix.database import records, session
from felix.runner import protocol
from felix.tuning import pacing
from tests.support import tuning_fakes as fakes


@pytest.fixture(autouse=True)
def _fake_sketches(monkeypatch: pytest.MonkeyPatch) -> None:
    fakes.use(monkeypatch)


def test_interrupt_keeps_what_was_measured(tmp_path: pathlib.Path) -> None:
    def interrupting(program: Any) -> float | protocol.ErrorClass:
        if len(pool.measured) > 20:
            raise KeyboardInterrupt
        return fakes.latency_us(program)

    pool = fakes.Pool(interrupting)
    result = fakes.tune(pool=pool, out=tmp_path, trials=64)
    assert result.reason == "interrupted"
    assert len(result.records) == 20
    assert len(records.read(tmp_path / "tuning" / "records.jsonl")) == 20
    assert pool.closed
    resumed = fakes.tune(out=tmp_path, trials=40, resume=True)
    assert len(resumed.records) == 40 == len(set(fakes.keys(resumed)))
    assert fakes.keys(resumed)[:20] == fakes.keys(result)


_VICTIM = """
import pathlib, sys
import felix
from felix.tuning import task_search
from tests.support import tuning_fakes as fakes
task_search.sketches_of = fakes.sketches
options = fakes.small(fakes.Pool(seconds=0.03))
felix.tune(fakes.task(), trials=400, model=fakes.Model(), options=options, out=sys.argv[1])
"""


def test_resumes_after_kill_nine(tmp_path: pathlib.Path) -> None:
    before = fakes.killed(_VICTIM, tmp_path)
    assert len(before) >= 20
    assert (tmp_path / "tuning" / "state.json").exists()
    pool = fakes.Pool()
    trials = len(before) + 24
    result = fakes.tune(pool=pool, out=tmp_path, trials=trials, resume=True)
    assert list(result.records[: len(before)]) == before
    assert len(result.records) == trials == len(set(fakes.keys(result)))
    assert len(pool.measured) == 24
    assert records.read(tmp_path / "tuning" / "records.jsonl") == list(result.records)
    assert result.records[-1].round > before[-1].round
    assert result.records[len(before)].elapsed_s >= before[-1].elapsed_s
    again = fakes.tune(out=tmp_path, trials=trials, resume=True)
    assert again.records == result.records and again.best.decisions == result.best.decisions


def test_resumes_without_a_checkpoint(tmp_path: pathlib.Path) -> None:
    first = fakes.tune(out=tmp_path, trials=16)
    (tmp_path / "tuning" / "state.json").unlink()
    result = fakes.tune(out=tmp_path, trials=32, resume=True)
    assert result.records[:16] == first.records
    assert len(set(fakes.keys(result))) == 32


def test_resume_of_several_tasks(tmp_path: pathlib.Path) -> None:
    tasks = [fakes.task(64), fakes.task(128)]
    first = fakes.tune(tasks, out=tmp_path, trials=24)
    result = fakes.tune(tasks, out=tmp_path, trials=48, resume=True)
    for before, after in zip(first.results, result.results, strict=True):
        assert after.records[: len(before.records)] == before.records
        assert after.unscheduled_us == fakes.UNSCHEDULED_US
    assert sum(len(r.records) for r in result.results) == 48


def test_a_new_run_keeps_the_old_session(tmp_path: pathlib.Path) -> None:
    first = fakes.tune(out=tmp_path, trials=8)
    fakes.tune(out=tmp_path, trials=8, seed=1)
    assert records.read(tmp_path / "tuning-1" / "records.jsonl") == list(first.records)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tasks": fakes.task(128)}, "another workload or target"),
        ({"seed": 5}, "another seed"),
        ({"strategy": "gradient", "options": {"search": None}}, "another strategy"),
    ],
)
def test_resume_refuses_another_run(
    tmp_path: pathlib.Path, change: dict[str, Any], message: str
) -> None:
    fakes.tune(out=tmp_path, trials=8)
    with pytest.raises(errors.RecordError, match=message):
        fakes.tune(out=tmp_path, resume=True, **change)
    assert len(records.read(tmp_path / "tuning" / "records.jsonl")) == 8


def test_another_feature_version_goes_on_from_the_records_alone(tmp_path: pathlib.Path) -> None:
    fakes.tune(out=tmp_path, trials=8)
    path = tmp_path / "tuning" / "session.json"
    written = path.read_text()
    path.write_text(written.replace('"features_version": ', '"features_version": 9'))
    (tmp_path / "tuning" / "state.json").write_text("of other features")
    result = fakes.tune(out=tmp_path, resume=True, trials=16)
    assert len(result.records) == 16
    assert path.read_text() == written


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 1, "n_records": 8, "jobs": 3}'])
def test_resume_refuses_a_damaged_state(tmp_path: pathlib.Path, text: str) -> None:
    fakes.tune(out=tmp_path, trials=8)
    (tmp_path / "tuning" / "state.json").write_text(text)
    with pytest.raises(errors.RecordError):
        fakes.tune(out=tmp_path, resume=True, trials=16)
    assert len(records.read(tmp_path / "tuning" / "records.jsonl")) == 8


def test_two_runs_do_not_share_a_folder(tmp_path: pathlib.Path) -> None:
    identity = session.Identity(
        task_keys=("a",),
        strategy="local",
        seed=0,
        features_version=1,
        template_features_version=1,
        versions={},
    )
    first = session.Session(tmp_path / "tuning", [], identity, resume=False)
    with pytest.raises(errors.OutputError, match="another run"):
        session.Session(tmp_path / "tuning", [], identity, resume=True)
    first.close()
    session.Session(tmp_path / "tuning", [], identity, resume=True).close()


def test_a_resumed_session_keeps_its_strategy(tmp_path: pathlib.Path) -> None:
    arguments: dict[str, Any] = {"out": tmp_path, "options": {"search": None}}
    fakes.tune(trials=8, strategy="local", **arguments)
    emitted: list[events.Event] = []
    resumed = fakes.tune(trials=16, resume=True, on_event=emitted.append, **arguments)
    started = [event for event in emitted if isinstance(event, events.Started)]
    assert len(resumed.records) == 16 and started[0].strategy == "local"
    assert session.strategy_of(tmp_path) == "local"
    assert session.strategy_of(tmp_path / "elsewhere") is None
    silent = tmp_path / "silent" / "tuning"
    silent.mkdir(parents=True)
    (silent / "session.json").write_text("{}")
    assert session.strategy_of(silent.parent) is None
    fakes.tune(trials=8, **arguments)  # another session: the default again
    assert session.strategy_of(tmp_path) == "gradient"


def test_seconds_of_an_earlier_session_may_not_count(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = fakes.Clock()
    monkeypatch.setattr(pacing, "Clock", lambda: clock)
    monkeypatch.setattr(clock, "resume", clock.wait)
    pool = fakes.Pool(seconds=0.05, wait=clock.wait)
    fakes.tune(pool=pool, trials=None, seconds=1.0, out=tmp_path)
    n_measured = len(pool.measured)
    clock._now_s = 0.0
    again = fakes.tune(pool=pool, trials=None, seconds=1.0, out=tmp_path, resume=True)
    assert len(pool.measured) == n_measured and again.reason == "seconds"
    clock._now_s = 0.0
    options = {"earlier_seconds_count": False}
    more = fakes.tune(
        pool=pool, trials=None, seconds=1.0, out=tmp_path, resume=True, options=options
    )
    assert len(more.records) > len(again.records)
