"""PyTorch's own operators as contenders of groups."""

from __future__ import annotations

import gc
import json
import pathlib
import weakref
from typing import Any

import pytest
import torch
from torch import nn

import felix
from felix import target
from felix.database import store
from felix.network import cuda_graph, executable, groups, imported
from felix.network.contenders import contest
from felix.network.contenders.shipping import Contender
from tests.support import networks, run_py


@pytest.mark.slow("tunes a network with PyTorch's calls as contenders")
def test_faster_pytorch_ships(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = networks.timed_contenders(monkeypatch, 1.0)
    model, x = nn.Sequential(nn.Linear(8, 8), nn.Softmax(-1)).eval(), torch.randn(2, 8)
    fast = networks.optimize(model, (x,), tmp_path, pytorch=True, trials=8)
    assert {each.contender for each in fast.report.groups} == {Contender.PYTORCH}
    assert log and "pytorch us" in str(fast.report)
    assert "felix takes 10.00 times as long" in str(fast.report)
    networks.assert_same(fast, model, 2 * x)
    for each in fast.report.groups:  # known results stay Felix's
        known = store.Store(tmp_path / "known.sqlite").find(each.group.task)
        assert known.tuned_us == 10.0
    n_timed = len(log)
    again = networks.optimize(model, (x,), tmp_path, pytorch=True)
    assert len(log) == n_timed and again.report.n_compared == 0
    assert {each.contender for each in again.report.groups} == {Contender.PYTORCH}
    plain = networks.optimize(model, (x,), tmp_path)
    assert {each.contender for each in plain.report.groups} == {Contender.FELIX}
    folder = fast.export(tmp_path / "net")
    done = run_py.run(folder, "--json", "--repeats", "2")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["max_error"] <= 1e-3


def test_slower_pytorch_does_not_ship(
    everything_known: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    networks.timed_contenders(monkeypatch, 99.0)
    x = torch.randn(2, 8)
    fast = networks.optimize(nn.Linear(8, 8), (x,), everything_known, pytorch=True)
    (shipped,) = fast.report.groups
    assert shipped.contender is Contender.FELIX
    assert shipped.latencies_us[Contender.PYTORCH] == 99.0


def test_improving_tunes_known_tasks(tmp_path: pathlib.Path) -> None:
    model, x = nn.Linear(8, 8), torch.randn(2, 8)
    networks.optimize(model, (x,), tmp_path)
    pool = networks.Pool(lambda program, task: 5.0)
    better = networks.optimize(model, (x,), tmp_path, pool, improve=True)
    assert pool.n_measured > 0
    assert better.report.groups[0].latencies_us[Contender.FELIX] == 5.0


@pytest.mark.gpu
def test_pytorch_in_a_captured_graph(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from felix.runner.calls import cuda_calls

    def in_turns_us(calls: Any, turns: int, burst: int, max_ratio: float) -> Any:
        return {name: [1.0 if name is Contender.PYTORCH else 10.0] for name in calls}

    monkeypatch.setattr(cuda_calls, "in_turns_us", in_turns_us)
    model = networks.Convolutions(8).cuda().eval()
    x, other = torch.randn(2, 1, 3, 16, 16, device="cuda")
    known = tmp_path / "known.sqlite"
    fast = felix.optimize(model, (x,), trials=2, target="cuda", known_results=known)
    assert Contender.PYTORCH in {each.contender for each in fast.report.groups}
    captured = cuda_graph.CapturedNetwork(fast.executable, [x])
    with torch.no_grad():
        expected = model(other)
    torch.testing.assert_close(tuple(captured([other])), expected, rtol=1e-3, atol=1e-4)


def test_contenders_are_compiled_a_few_groups_at_a_time(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    networks.timed_contenders(monkeypatch, 20.0)
    compiled: list[list[weakref.ref[Any]]] = []
    compile_networks = executable.compile_networks

    def logged(mods: Any, full: Any) -> Any:
        gc.collect()
        assert not any(ref() for each in compiled for ref in each)  # dropped: they were timed
        built = compile_networks(mods, full)
        compiled.append([weakref.ref(each) for each in built])
        return built

    monkeypatch.setattr(executable, "compile_networks", logged)
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 16), nn.Linear(16, 4))
    network = imported.read(model, (torch.randn(2, 8),), {}, target.parse("llvm"))
    every = [(group, None) for group in groups.of(network.lowered, network.target)]
    known = store.Store(tmp_path / "known.sqlite")
    monkeypatch.setattr(contest, "N_TOGETHER", 2)
    contenders = contest.Contest(network, known)
    compared = [each for _, _, each in contenders.compare(every)]
    assert len(compared) == len(every) > 2 and contenders.n_timed > 2
    assert len(compiled) > 1 and all(0 < len(each) <= 4 for each in compiled)
    again = contest.Contest(network, known)
    assert [each for _, _, each in again.compare(every)] == compared and not again.n_timed
