"""What ships is never slower than the unscheduled program, and every output says which it is."""

from __future__ import annotations

import dataclasses
import json
import pathlib
import time
from concurrent import futures
from typing import Any

import pytest
import tvm
from tvm.s_tir import meta_schedule as ms

import felix
from felix import errors, events, workloads
from felix.cli import main, progress, report
from felix.runner import protocol
from felix.tuning import options, pending, results
from tests.support import run_py, tir_programs
from tests.support import tuning_fakes as fakes


def _tune(unscheduled_us: list[float], tuned_us: list[float] | None = None, **more: Any) -> Any:
    """A run whose measurements of the unscheduled program are those, one after the other."""
    baseline, tuned = iter(unscheduled_us), iter(tuned_us or [])

    def latency_of(mod: Any) -> float:
        if isinstance(mod, fakes.Program):
            return next(tuned, None) or fakes.latency_us(mod)
        return next(baseline)

    options, emitted = {"n_remeasured": 3, "remeasure_turns": 3} | more, []
    pool = fakes.Pool(latency_of)
    result = fakes.tune(pool=pool, trials=24, options=options, on_event=emitted.append)
    return result, emitted


@pytest.fixture
def fake_sketches(monkeypatch: pytest.MonkeyPatch) -> None:
    fakes.use(monkeypatch)


@pytest.mark.usefixtures("fake_sketches")
def test_the_faster_unscheduled_program_ships() -> None:
    result, emitted = _tune([4.0] * 4)
    assert result.ships_unscheduled and result.best.latency_us == 4.0
    assert result.tuned_or_none.latency_us > 4.0 * (1 + results.TIE)
    assert result.speedup == 1.0 and result.unscheduled_us == 4.0
    assert result.curve[-1][2] == 4.0
    assert result.best.sketch_index is None and result.best.decisions == ()
    (chosen,) = (event for event in emitted if isinstance(event, events.Chosen))
    assert chosen.ships_unscheduled and chosen.tuned_us == result.tuned_or_none.latency_us


@pytest.mark.usefixtures("fake_sketches")
def test_one_lucky_measurement_does_not_decide() -> None:
    """It seemed fast once; measured again in turns with the best, it is slow."""
    result, _ = _tune([4.0, 90.0, 91.0, 92.0])
    assert not result.ships_unscheduled and result.unscheduled_us == 91.0
    assert result.best is result.tuned_or_none and result.speedup > 1


@pytest.mark.usefixtures("fake_sketches")
def test_a_program_that_is_far_slower_is_not_measured_again() -> None:
    result, _ = _tune([5000.0])  # a second measurement would raise
    assert not result.ships_unscheduled and result.unscheduled_us == 5000.0


@pytest.mark.usefixtures("fake_sketches")
def test_a_tie_goes_to_the_schedule_and_is_no_slowdown() -> None:
    plain, _ = _tune([5000.0])
    tie_us = plain.best.latency_us / (1 + 0.5 * results.TIE)
    result, _ = _tune([tie_us] * 4)
    assert not result.ships_unscheduled
    assert result.best.latency_us > result.unscheduled_us and result.speedup == 1.0


@pytest.mark.usefixtures("fake_sketches")
def test_without_measuring_again_the_single_measurements_decide() -> None:
    result, _ = _tune([4.0], n_remeasured=0)
    assert result.ships_unscheduled and result.best.latency_us == 4.0


@pytest.mark.usefixtures("fake_sketches")
def test_both_are_timed_in_turns() -> None:
    order: list[str] = []

    def latency_of(mod: Any) -> float:
        order.append("tuned" if isinstance(mod, fakes.Program) else "unscheduled")
        return fakes.latency_us(mod) if isinstance(mod, fakes.Program) else 4.0

    options = {"n_remeasured": 1, "remeasure_turns": 3}
    fakes.tune(pool=fakes.Pool(latency_of), trials=8, options=options)
    assert order[-6:] == ["tuned", "unscheduled"] * 3


@pytest.mark.usefixtures("fake_sketches")
def test_the_report_says_it() -> None:
    result, _ = _tune([4.0] * 4)
    text = fakes.report_text([result])
    assert "the unscheduled program was faster" in text
    assert "it is what ships" in text and "1.00x" in text
    network = results.network([result], result.reason, result.breakdown)
    (task,) = report.to_json(network, [{}], [None])["tasks"]
    assert task["ships"] == "unscheduled" and task["best"]["latency_us"] == 4.0
    assert task["best"]["sketch_index"] is None and task["tuned_us"] > 4.0
    assert network.latency_us == 4.0
    on_gpu = workloads.elementwise((64,), ops=("relu",), target="h200")
    text = fakes.report_text([dataclasses.replace(result, task=on_gpu)])
    assert "vs default schedule" in text and "the default schedule was faster" in text


@pytest.mark.usefixtures("fake_sketches")
def test_a_program_without_a_default_schedule_is_tuned(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(task: felix.Task) -> Any:
        raise errors.UnsupportedSchedule("block B has no default schedule")

    monkeypatch.setattr(results, "unscheduled", refuse)
    result, emitted = _tune([])
    assert result.unscheduled_us is None and not result.ships_unscheduled
    (baseline,) = (event for event in emitted if isinstance(event, events.Baseline))
    assert baseline.latency_us is None and "no default schedule" in baseline.message


@pytest.fixture(scope="module")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> tuple[felix.TuneResult, pathlib.Path]:
    """A real run, as if its unscheduled program had been faster, and its bundle."""
    task = workloads.elementwise((64,), ops=("relu",), target="llvm -num-cores 1")
    out = tmp_path_factory.mktemp("unscheduled")
    tuned = felix.tune(task, trials=2, out=out, options=options.TuneOptions(n_remeasured=0))
    assert tuned.tuned_or_none is not None
    state = json.loads((out / "tuning" / "state.json").read_text())
    state["jobs"][0]["unscheduled"] = {"latency_us": 1e-3, "message": ""}
    (out / "tuning" / "state.json").write_text(json.dumps(state))
    assert main.main(["compile", str(out)]) == 0
    return tuned, out


def test_the_bundle_ships_the_unscheduled_program(
    shipped: tuple[felix.TuneResult, pathlib.Path],
) -> None:
    tuned, out = shipped
    manifest = json.loads((out / "manifest.json").read_text())
    assert manifest["ships"] == "unscheduled" and manifest["best"]["latency_us"] == 1e-3
    assert manifest["best"]["sketch_index"] is None and manifest["best"]["decisions"] == []
    assert manifest["tuned"]["latency_us"] == tuned.tuned_or_none.latency_us  # type: ignore
    assert any("it is what ships" in note for note in manifest["notes"])
    database = ms.database.JSONDatabase(work_dir=str(out / "database"))
    applied = ms.tir_integration.compile_tir(database, tuned.task.mod, tuned.task.target)
    tvm.ir.assert_structural_equal(applied.mod["main"].body, tuned.task.func.body)
    done = run_py.run(out, "--json", "--repeats", "2")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["tuned_us"] == 1e-3


def test_a_bundle_compiled_again_ships_the_same(
    shipped: tuple[felix.TuneResult, pathlib.Path],
    tmp_path: pathlib.Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    _, out = shipped
    assert main.main(["compile", str(out / "records.jsonl"), "--out", str(tmp_path)]) == 0
    assert "it is what ships" in capsys.readouterr().out
    assert json.loads((tmp_path / "manifest.json").read_text())["ships"] == "unscheduled"


def test_a_failed_baseline_changes_nothing() -> None:
    failed = protocol.Measurement(error=protocol.ErrorClass.BUILD)
    task = fakes.task()
    tuned = results.Best.__new__(results.Best)
    assert results.faster(task, tuned, failed) is tuned
    assert results.faster(task, tuned, None) is tuned


def test_without_a_correct_schedule_the_unscheduled_program_ships_if_it_is_right() -> None:
    task = fakes.task()
    unchecked = protocol.Measurement(latency_us=1.0)
    assert results.faster(task, None, unchecked) is None
    ships = results.faster(task, None, dataclasses.replace(unchecked, checked=True))
    assert isinstance(ships, results.Unscheduled) and ships.latency_us == 1.0


@pytest.mark.usefixtures("fake_sketches")
def test_where_every_schedule_fails_the_report_and_the_events_say_what_ships() -> None:
    def latency_of(mod: Any) -> Any:
        return protocol.ErrorClass.WRONG_RESULT if isinstance(mod, fakes.Program) else 7.0

    emitted: list[events.Event] = []
    result = fakes.tune(pool=fakes.Pool(latency_of), trials=8, on_event=emitted.append)
    assert result.ships_unscheduled and result.best.latency_us == result.unscheduled_us == 7.0
    assert result.tuned_or_none is None and result.speedup == 1.0
    note = result.unscheduled_note()
    assert note is not None and "no schedule ran correctly: the unscheduled program is" in note
    assert "8 had a wrong_result error" in note
    (chosen,) = (event for event in emitted if isinstance(event, events.Chosen))
    assert chosen.ships_unscheduled and chosen.tuned_us is None
    assert "no schedule ran correctly" in (progress.text(chosen) or "")
    network = results.network([result], result.reason, result.breakdown)
    (task,) = report.to_json(network, [{}], [None])["tasks"]
    assert task["ships"] == "unscheduled" and task["tuned_us"] is None and task["error"] is None


def test_candidates_that_tvm_rejects_leave_their_reason_and_a_bundle(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """TVM's rules take a sum without a start, and its postprocessors reject all they give."""
    func = tir_programs.function(
        """
        for i, j in T.grid(16, 8):
            with T.sblock("sum"):
                v, w = T.axis.remap("SR", [i, j])
                B[v] = B[v] + A[v, w]
        """,
        'A: T.Buffer((16, 8), "float32")',
        tir_programs.B16,
    )
    task = felix.Task.from_prim_func(func, "llvm -num-cores 1")
    result = felix.tune(task, 1, out=tmp_path, options=options.TuneOptions(n_remeasured=0))
    assert result.tuned_or_none is None and result.ships_unscheduled
    assert "TVM rejected" in (result.unscheduled_note() or "")
    result.export(tmp_path)
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert manifest["ships"] == "unscheduled" and manifest["tuned"] is None
    for source in (tmp_path / "tuning", tmp_path / "records.jsonl"):
        assert main.main(["compile", str(source), "--out", str(tmp_path / "again")]) == 0
        assert "the unscheduled program is what ships" in capsys.readouterr().out


class _Endless(fakes.Pool):
    """Never answers about the unscheduled program."""

    def for_task(self, task: Any) -> Any:
        measurer = super().for_task(task)
        submit = measurer.submit

        def endless(mod: Any, thorough: bool = False) -> Any:
            return submit(mod) if isinstance(mod, fakes.Program) else futures.Future()

        measurer.submit = endless  # type: ignore[method-assign]
        return measurer


@pytest.mark.usefixtures("fake_sketches")
def test_an_endless_baseline_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pending, "BASELINE_WAIT_S", 0.3)
    result = fakes.tune(pool=_Endless(), trials=8)
    assert result.reason == "trials" and result.unscheduled_us is None
    assert not result.ships_unscheduled and result.speedup is None


@pytest.mark.usefixtures("fake_sketches")
def test_the_wait_for_a_baseline_hears_a_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pending, "BASELINE_WAIT_S", 60.0)
    pool = _Endless()
    options = {"should_stop": lambda: len(pool.measured) >= 8}
    start = time.monotonic()
    result = fakes.tune(pool=pool, trials=8, options=options)
    assert result.reason == "interrupted" and time.monotonic() - start < 30
    assert result.best.latency_us > 0
