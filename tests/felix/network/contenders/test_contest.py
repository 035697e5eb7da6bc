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
from felix.known_results import store
from felix.network import cuda_graph, executable, groups, imported
from felix.network.contenders import contest
from felix.network.contenders.shipping import Contender
from felix.torch_calls import functions
from tests.support import networks, run_py, share


def _close(actual: Any, expected: Any) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)


def test_faster_pytorch_ships(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = networks.timed_contenders(monkeypatch, 1.0)
    model, x = nn.Sequential(nn.Linear(8, 8), nn.Softmax(-1)).eval(), torch.randn(2, 8)
    fast = networks.optimize(model, (x,), tmp_path, pytorch=True, trials=8)
    assert {each.contender for each in fast.report.groups} == {Contender.PYTORCH}
    assert log and "pytorch us" in str(fast.report)
    assert "felix takes 10.00 times as long" in str(fast.report)
    with torch.no_grad():
        _close(fast(2 * x), model(2 * x))
    for each in fast.report.groups:  # known results stay Felix's
        assert each.group.task is not None
        known = store.Store(tmp_path / "known.sqlite").find(each.group.task)
        assert known is not None and known.tuned_us == 10.0
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


def test_slower_or_wrong_pytorch_does_not_ship(
    everything_known: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    networks.timed_contenders(monkeypatch, 99.0)
    x = torch.randn(2, 8)
    fast = networks.optimize(nn.Linear(8, 8), (x,), everything_known, pytorch=True)
    (shipped,) = fast.report.groups
    assert shipped.contender is Contender.FELIX
    assert shipped.latencies_us[Contender.PYTORCH] == 99.0
    monkeypatch.setitem(functions.MAKING, "linear", lambda x, w, b: nn.functional.linear(x, w))
    fast = networks.optimize(nn.Linear(8, 16), (x,), everything_known, pytorch=True)
    (shipped,) = fast.report.groups
    assert "differs" in (shipped.without_pytorch or "")
    assert Contender.PYTORCH not in shipped.latencies_us


@pytest.mark.parametrize("dtype", share.of([torch.float32, torch.bfloat16], 1))
def test_transformer(
    everything_known: pathlib.Path, monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype
) -> None:
    networks.timed_contenders(monkeypatch, 1.0)
    model = networks.Block().to(dtype).eval()
    tokens = torch.tensor([[1, 2, 3, 10, 0]])
    fast = networks.optimize(model, tokens, everything_known, pytorch=True)
    shipped = [each for each in fast.report.groups if each.contender is Contender.PYTORCH]
    assert len(shipped) >= len(fast.report.groups) - 3
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        actual = fast(tokens.flip(1))
    with torch.no_grad():
        expected = model(tokens.flip(1))
    limit = 1e-4 if dtype is torch.float32 else 0.1
    torch.testing.assert_close(actual, expected, rtol=limit, atol=limit)


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
    from felix.measure.calls import cuda_calls

    def in_turns_us(calls: Any, turns: int, burst: int, hopeless: float) -> Any:
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
    for output, reference in zip(captured([other]), expected, strict=True):
        torch.testing.assert_close(output, reference, rtol=1e-3, atol=1e-4)


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
