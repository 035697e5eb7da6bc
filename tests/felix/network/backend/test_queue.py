"""From a model that nobody tuned to one that runs tuned programs, by way of the queue."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import pytest
import torch
from torch import nn

from felix.cli import main
from felix.database import store
from felix.network import deadline, outcomes
from felix.network.backend import entry, queued
from felix.network.contenders.shipping import Contender
from felix.task import Task
from felix.tuning import options
from tests.support import backend, networks


def _model() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 4), nn.Softmax(-1)).eval()


def _request(pool: networks.Pool, trials: int = 3) -> outcomes.Request:
    chosen = networks.tune_options(pool, first_round_size=1)
    return outcomes.Request(trials=trials, options=chosen)


def test_unknown_tasks_are_queued_and_run_in_pytorch(tmp_path: pathlib.Path) -> None:
    model, x = _model(), torch.randn(3, 8)
    fast = backend.compiled(model, tmp_path)
    with torch.no_grad():
        assert torch.equal(fast(x), model(x))  # PyTorch itself
    (only,) = backend.parts()
    assert not only.is_tuned and only.reason == "nothing is known of its 3 tasks"
    waiting = store.queued(backend.known(tmp_path))
    assert len(waiting) == len(only.queued) == 3
    assert {each.n_requests for each in waiting} == {1}
    assert all(each.form is not None for each in waiting)
    assert "3 tasks are queued: tune them by felix tune --queued" in str(entry.backend_report())
    torch._dynamo.reset()
    with torch.no_grad():
        backend.compiled(model, tmp_path)(x)
    assert {each.n_requests for each in store.queued(backend.known(tmp_path))} == {2}


def test_without_the_queue(tmp_path: pathlib.Path) -> None:
    backend.compiled(torch.relu, tmp_path, queue=False)(torch.ones(2))
    assert not store.queued(backend.known(tmp_path)) and not entry.backend_report().n_queued


def test_worked_off(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    networks.timed_contenders(monkeypatch, 12.0)
    model, x = _model(), torch.randn(3, 8)
    pool, known = networks.Pool(), backend.known(tmp_path)
    with torch.no_grad():
        backend.compiled(model, tmp_path)(x)
        summary = queued.work_off(known, _request(pool))
        assert len(summary.done) == 3 and not summary.left and pool.n_measured >= 3
        assert {each.shipped.contender for each in summary.done} == {Contender.FELIX}
        assert not store.queued(known)
        torch._dynamo.reset()
        fast = backend.compiled(model, tmp_path)
        networks.assert_close(fast(x), model(x))
    (only,) = backend.parts()
    assert only.is_tuned and not only.queued
    assert all("pytorch takes 1.20 times as long" in each.reason for each in only.groups)
    assert not queued.work_off(known, _request(pool)).done  # nothing waits


@pytest.mark.slow("tunes another graph of the queue")
def test_pytorch_is_faster(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    networks.timed_contenders(monkeypatch, 2.0)
    model, x = _model(), torch.randn(3, 8)
    with torch.inference_mode():
        backend.compiled(model, tmp_path)(x)
        queued.work_off(backend.known(tmp_path), _request(networks.Pool()))
        torch._dynamo.reset()
        assert torch.equal(backend.compiled(model, tmp_path)(x), model(x))
    (only,) = backend.parts()
    assert not only.is_tuned and not only.queued
    assert only.reason == "PyTorch's operators are the fastest of each group that is known"


def test_some_is_known(tmp_path: pathlib.Path) -> None:
    """A known program runs; PyTorch's operators do the unknown rest in the same network."""
    model, x = _model(), torch.randn(3, 8)
    results = backend.known(tmp_path)
    with torch.no_grad():
        backend.compiled(model, tmp_path)(x)
        for each in store.queued(results):
            task = Task.from_json(each.task, trusted=True)
            if "softmax" in task.name:
                results.add(task, backend.outcome(task))
        torch._dynamo.reset()
        networks.assert_close(backend.compiled(model, tmp_path)(x), model(x))
    (only,) = backend.parts()
    assert only.is_tuned and only.reason == "1 of its 3 groups are known"
    runs = {each.group.name: each.contender for each in only.groups}
    assert runs.pop("softmax") is Contender.FELIX
    assert set(runs.values()) == {Contender.PYTORCH}


def test_no_time_for_all(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    networks.timed_contenders(monkeypatch, 12.0)
    known = backend.known(tmp_path)
    with torch.no_grad():
        backend.compiled(_model(), tmp_path)(torch.randn(3, 8))
    summary = queued.work_off(known, _request(networks.Pool(), trials=1))
    assert summary.done and summary.left
    assert len(store.queued(known)) == len(summary.left) == 3 - len(summary.done)


def test_what_there_is_no_time_to_compare_waits(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What tuning found is known then: the next call compares it."""
    log = networks.timed_contenders(monkeypatch, 9.0)  # near the programs of 10 us
    known = backend.known(tmp_path)
    with torch.no_grad():
        backend.compiled(_model(), tmp_path)(torch.randn(3, 8))
    n_tasks = len(store.queued(known))
    within = outcomes.within

    def late(*arguments: Any) -> outcomes.Outcomes:
        gathered = within(*arguments)
        monkeypatch.setattr(deadline.Deadline, "left_s", 0.0)
        return gathered

    monkeypatch.setattr(outcomes, "within", late)
    pool = networks.Pool(lambda program, task: 10.0)
    summary = queued.work_off(known, _request(pool))
    assert not summary.done and len(store.queued(known)) == n_tasks
    assert {why for _, why in summary.left} == {"time was used up before it was compared"}
    assert pool.n_measured and all(len(each) == 1 for each in log)  # alone
    monkeypatch.undo()
    networks.timed_contenders(monkeypatch, 9.0)
    assert len(queued.work_off(known, _request(networks.Pool())).done) == n_tasks


def test_tasks_of_another_version_are_dropped(tmp_path: pathlib.Path) -> None:
    known = backend.known(tmp_path)
    backend.compiled(torch.relu, tmp_path)(torch.ones(2))
    with known.connection() as connection:
        connection.execute("UPDATE queue SET task = '{}'")
    summary = queued.work_off(known, _request(networks.Pool()))
    assert "dropped" in summary.left[0][1] and not store.queued(known)


class TestCommand:
    @pytest.fixture
    def pool(self, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> networks.Pool:
        """What the command measures with; known results are the test's own."""
        pool = networks.Pool()
        monkeypatch.setenv(store.VARIABLE, str(tmp_path / "known.sqlite"))
        monkeypatch.setattr(options.TuneOptions, "open_pool", lambda self, task: pool)
        return pool

    def test_tunes_what_is_queued(
        self,
        pool: networks.Pool,
        monkeypatch: pytest.MonkeyPatch,
        tmp_path: pathlib.Path,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        networks.timed_contenders(monkeypatch, 12.0)
        backend.compiled(torch.relu, tmp_path)(torch.ones(64))
        arguments = ["tune", "--queued", "--trials", "2", "--quiet"]
        assert main.main([*arguments, "--json"]) == 0
        (done,) = json.loads(capsys.readouterr().out)["done"]
        assert done["task"] == "relu" and done["fastest"] == "felix" and done["requests"] == 1
        assert pool.n_measured > 0
        assert main.main(arguments) == 0
        assert capsys.readouterr().out == "nothing is queued\n"

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["--queued", "--target", "llvm"], "leave them out"),
            (["--queued", "--strategy", "local"], "leave out --strategy and --model"),
        ],
    )
    def test_refused(
        self,
        pool: networks.Pool,
        capsys: pytest.CaptureFixture[str],
        arguments: list[str],
        message: str,
    ) -> None:
        assert main.main(["tune", *arguments]) == 1
        assert message in capsys.readouterr().err

    def test_either_workloads_or_the_queue(self, capsys: pytest.CaptureFixture[str]) -> None:
        with pytest.raises(SystemExit, match="2"):
            main.main(["tune", "gemm:8,8,8", "--queued"])
        assert "not allowed with" in capsys.readouterr().err
