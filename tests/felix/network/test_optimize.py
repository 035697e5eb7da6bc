"""Whole networks: right results, a true report, known results, resuming."""

from __future__ import annotations

import json
import pathlib
import runpy
from typing import Any

import pytest
import torch
from torch import nn

import felix
from felix import errors, events
from felix.database import databases, store
from felix.database import outcome as adapt
from felix.network.contenders.shipping import Contender
from felix.runner import protocol
from felix.task import Task
from tests.support import networks, run_py
from tests.support.modules import Called


@pytest.mark.slow("tunes a network of convolutions")
def test_convolutions(tmp_path: pathlib.Path) -> None:
    model = networks.Convolutions().train()
    model(torch.randn(8, 3, 6, 6))  # running statistics that are not 0 and 1
    x, other = torch.randn(1, 3, 6, 6), torch.randn(1, 3, 6, 6)
    fast = networks.optimize(model, (x,), tmp_path)
    assert model.training
    model.eval()
    first = fast(other)
    fast(x)  # does not overwrite it
    with torch.no_grad():
        networks.assert_close(first, model(other))
    alike = [each for each in fast.report.groups if each.group.calls == 2]
    assert alike
    assert alike[0].group.task.weight == 2.0
    assert alike[0].contender is Contender.FELIX


@pytest.mark.slow("tunes a network once more")
def test_structure_and_keywords(tmp_path: pathlib.Path) -> None:
    model = networks.Perceptron()
    x, scale = torch.randn(4, 16), torch.tensor(0.5)
    fast = networks.optimize(model, (x,), tmp_path, kwargs={"scale": scale, "skip": True})
    networks.assert_same(fast, model, x, scale=scale * 3, skip=True)
    with pytest.raises(errors.WorkloadError, match="argument"):
        fast(x, scale=scale, skip=False)
    with pytest.raises(errors.WorkloadError, match="float32"):
        fast(torch.randn(5, 16), scale=scale, skip=True)


def test_transformer_with_tied_weights(tmp_path: pathlib.Path) -> None:
    model = networks.Block()
    tokens = torch.tensor([[1, 2, 3, 10, 0]])
    fast = networks.optimize(model, tokens, tmp_path, trials=2)
    networks.assert_same(fast, model, tokens.flip(1))
    text = str(fast.report)
    assert "a call runs: TVM's virtual machine" in text
    assert all(each.group.name[:40] in text for each in fast.report.groups)
    assert all(f"untuned: {each.group.name}" in text for each in fast.report.untuned)


def test_inputs_that_are_not_contiguous(everything_known: pathlib.Path) -> None:
    model = nn.Linear(8, 4)
    x = torch.randn(8, 6).t()
    fast = networks.optimize(model, (x.contiguous(),), everything_known)
    shifted = torch.randn(6 * 8 + 1)[1:].reshape(6, 8)
    networks.assert_same(fast, model, x)
    networks.assert_same(fast, model, shifted)


def test_known_network_is_not_measured(tmp_path: pathlib.Path) -> None:
    model, x = nn.Sequential(nn.Linear(8, 8), nn.ReLU()), torch.randn(2, 8)
    pool = networks.Pool()
    first = networks.optimize(model, (x,), tmp_path, pool)
    assert pool.n_measured > 0 and first.report.reason == "trials"
    assert first.report.timing.network_us > 0
    n_measured = pool.n_measured
    second = networks.optimize(model, (x,), tmp_path, pool)
    assert pool.n_measured == n_measured
    assert second.report.reason is None and "nothing was measured" in str(second.report)
    shipped = second.report.groups[0]
    assert shipped.is_known and shipped.contender is Contender.FELIX
    networks.assert_same(second, model, x)


def test_never_slower_than_tvm(tmp_path: pathlib.Path) -> None:
    model, x = nn.Linear(8, 8), torch.randn(2, 8)
    slow = networks.Pool(lambda program, task: 2 * networks.UNSCHEDULED_US)
    fast = networks.optimize(model, (x,), tmp_path, slow)
    shipped = fast.report.groups[0]
    assert shipped.contender is Contender.TVM
    assert shipped.latencies_us[Contender.FELIX] == 2 * networks.UNSCHEDULED_US
    assert shipped.reason == "felix takes 2.00 times as long"
    assert fast.report.latency_us == networks.UNSCHEDULED_US


def test_candidates_that_fail(tmp_path: pathlib.Path) -> None:
    model, x = nn.Linear(8, 8), torch.randn(2, 8)
    broken = networks.Pool(lambda program, task: protocol.ErrorClass.LAUNCH)
    fast = networks.optimize(model, (x,), tmp_path, broken)
    shipped = fast.report.groups[0]
    assert shipped.contender is Contender.TVM and "launch" in (shipped.untuned or "")
    networks.assert_same(fast, model, x)


def test_failures_of_the_machine_are_not_known(tmp_path: pathlib.Path) -> None:
    model, x = nn.Linear(8, 8), torch.randn(2, 8)
    absent = networks.Pool(lambda program, task: protocol.ErrorClass.INFRASTRUCTURE)
    fast = networks.optimize(model, (x,), tmp_path, absent)
    assert "infrastructure" in (fast.report.groups[0].untuned or "")
    assert store.Store(tmp_path / "known.sqlite").entries() == []
    again = networks.optimize(model, (x,), tmp_path)
    assert again.report.groups[0].contender is Contender.FELIX
    still = networks.optimize(model, (x,), tmp_path, absent, improve=True)
    assert still.report.groups[0].contender is Contender.FELIX


@pytest.mark.parametrize("arguments", [{"trials": 0}, {"seconds": -1.0}, {"seed": -1}])
def test_budgets_that_there_are_not(tmp_path: pathlib.Path, arguments: Any) -> None:
    """Nothing is stored that a later call would take for a result."""
    with pytest.raises(errors.TuningError, match=next(iter(arguments))):
        networks.optimize(nn.Linear(8, 8), (torch.randn(2, 8),), tmp_path, **arguments)
    assert store.Store(tmp_path / "known.sqlite").entries() == []


def test_killed_run_resumes(tmp_path: pathlib.Path) -> None:
    """A run that dies after some measurements: the next one measures only the rest."""

    class Killed(BaseException):
        """Ends the run in place of SIGKILL."""

    model, x = nn.Linear(8, 8), torch.randn(2, 8)
    pool = networks.Pool()
    measured: list[events.Trial] = []

    def kill(event: events.Event) -> None:
        if isinstance(event, events.Trial):
            measured.append(event)
            if len(measured) == 3:
                raise Killed

    with pytest.raises(Killed):
        networks.optimize(model, (x,), tmp_path, pool, trials=6, on_event=kill)
    before = pool.n_measured
    fast = networks.optimize(model, (x,), tmp_path, pool, trials=6)
    outcome = fast.report.groups[0].outcome
    assert outcome.n_trials == 6
    assert pool.n_measured - before == 3
    assert not list((tmp_path / "known.sqlite.sessions").iterdir())


def test_nothing_to_tune(tmp_path: pathlib.Path) -> None:
    pool, x = networks.Pool(), torch.randn(3, 5)
    fast = networks.optimize(nn.Identity(), (x,), tmp_path, pool)
    assert torch.equal(fast(x), x)
    assert pool.n_measured == 0 and fast.report.reason is None and not fast.report.groups


def test_programs_that_cannot_be_tuned(tmp_path: pathlib.Path) -> None:
    model, x = Called(lambda x: torch.sort(x, dim=-1).values), torch.randn(3, 5)
    fast = networks.optimize(model, (x,), tmp_path)
    assert torch.equal(fast(x), model(x))


@pytest.mark.parametrize(
    ("model", "inputs", "arguments", "message"),
    [
        ("missing.onnx", (), {}, "cannot be read"),
        (3, (), {}, "optimize takes"),
        (nn.Linear(4, 4), (torch.randn(2, 3),), {}, "cannot be imported"),
        (nn.Linear(4, 4), (torch.randn(2, 4),), {"shapes": {"x": [1]}}, "ONNX"),
    ],
)
def test_bad_inputs(
    tmp_path: pathlib.Path, model: Any, inputs: Any, arguments: Any, message: str
) -> None:
    with pytest.raises(errors.WorkloadError, match=message):
        networks.optimize(model, inputs, tmp_path, **arguments)


@pytest.mark.slow("tunes a network and runs it in processes")
@pytest.mark.fresh_processes
def test_an_artifact_runs_without_felix_and_is_called(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TVM_NUM_THREADS", "2")  # which `Network` sets, and later tests would have
    model, x = networks.Convolutions(2).eval(), torch.randn(1, 3, 5, 5)
    folder = networks.optimize(model, (x,), tmp_path, trials=2).export(tmp_path / "net")
    done = run_py.run(folder, "--json", "--repeats", "3")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["latency_us"] > 0 and answer["max_error"] <= 1e-3
    module = runpy.run_path(str(folder / "run.py"))
    network = module["Network"](folder)
    with torch.no_grad():
        expected = model(x)
    strided, shifted = x.transpose(2, 3).contiguous().transpose(2, 3), torch.zeros(76)[1:]
    shifted.copy_(x.view(-1))
    for value in (x, x.numpy(), strided, shifted.view(x.shape)):
        networks.assert_close(tuple(map(torch.from_dlpack, network(value))), expected)
    for wrong, message in (
        (x.double(), "float64"),
        (x[:, :2], r"\[1, 2, 5, 5\]"),
        (3.0, "float "),
    ):
        with pytest.raises(module["Failure"], match=message):
            network(wrong)
    (folder / "parameters.bin").write_bytes(b"other")
    with pytest.raises(module["Failure"], match="sha256 differs"):
        module["Network"](folder)


@pytest.mark.slow("tunes a network twice")
def test_two_calls_for_the_same_tasks_have_folders_of_their_own(tmp_path: pathlib.Path) -> None:
    model, x = nn.Linear(8, 8), torch.randn(2, 8)
    inner: list[Any] = []

    def again(event: events.Event) -> None:
        if isinstance(event, events.Trial) and not inner:
            inner.append(networks.optimize(model, (x,), tmp_path))

    fast = networks.optimize(model, (x,), tmp_path, on_event=again)
    assert inner[0].report.reason == fast.report.reason == "trials"
    assert not list((tmp_path / "known.sqlite.sessions").iterdir())


def test_schedules_of_a_database_are_measured_first(tmp_path: pathlib.Path) -> None:
    """What is known elsewhere, as a MetaSchedule database."""
    measured: list[str] = []

    def note(program: Any, task: Task) -> float:
        measured.append(program.script())
        return 100.0 - len(measured)  # the last is the fastest

    pool, layer, x = networks.Pool(note), nn.Linear(16, 32), torch.randn(4, 16)
    networks.optimize(layer, (x,), tmp_path, pool)
    known = store.Store(tmp_path / "known.sqlite")
    assert databases.export(known, tmp_path / "database") == 1
    first, *_, best = measured
    assert best != first
    measured.clear()
    (tmp_path / "other").mkdir()
    networks.optimize(layer, (x,), tmp_path / "other", pool, database=tmp_path / "database")
    assert measured[0] == best
    with pytest.raises(errors.RecordError, match="database"):
        networks.optimize(layer, (x,), tmp_path / "other", pool, database=tmp_path / "none")


def test_similar_network_starts_from_known_results(tmp_path: pathlib.Path) -> None:
    """The same layer for another batch: the first candidates are adapted ones."""
    measured: list[str] = []

    def note(program: Any, task: Task) -> float:
        measured.append(program.script())
        return 10.0

    pool, layer = networks.Pool(note), nn.Linear(16, 32)
    networks.optimize(layer, (torch.randn(4, 16),), tmp_path, pool)
    known = store.Store(tmp_path / "known.sqlite")
    measured.clear()
    fast = networks.optimize(layer, (torch.randn(8, 16),), tmp_path, pool)
    task = fast.report.groups[0].group.task
    similar = known.similar(task)
    assert [each.tuned_us for each in similar] == [10.0]
    sketches = {sketch.key: sketch for sketch in felix.sketches(task)}
    adapted = adapt.first_schedules(similar, list(sketches.values()))
    programs = {sketches[key].schedule(row).mod.script() for key, row in adapted}
    assert programs and measured[0] in programs
