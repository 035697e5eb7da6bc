"""Contenders timed alone, and the groups that need no comparison in turns then."""

from __future__ import annotations

import pathlib
from typing import Any

import pytest
import torch
from torch import nn

from felix import target
from felix.builder import payload
from felix.database import store
from felix.database.outcome import KnownResult
from felix.network import groups, imported
from felix.network.contenders import alone, contest, shipping
from felix.network.contenders.shipping import Contender
from felix.torch_calls import functions
from tests.support import networks

X = torch.randn(2, 8)


def _never() -> bool:
    return False


def _always() -> bool:
    return True


def test_what_was_timed_is_known(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = networks.timed_contenders(monkeypatch, 7.0)
    known = store.Store(tmp_path / "known.sqlite")
    _, group = networks.of_one_group(nn.Linear(8, 4), X)
    assert alone.latencies_us([group], known, _never) == {}
    expected = {group.task.key: {Contender.PYTORCH: 7.0, Contender.TVM: 10.0}}
    assert alone.latencies_us([group], known, _always) == expected
    assert alone.latencies_us([group, group], known, _never) == expected
    assert log == [{Contender.PYTORCH}, {Contender.TVM}]


def test_an_operator_that_fails_has_no_latency(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*tensors: torch.Tensor) -> Any:
        raise RuntimeError("no memory")

    monkeypatch.setitem(functions.MAKING, "linear", fails)
    known = store.Store(tmp_path / "known.sqlite")
    _, group = networks.of_one_group(nn.Linear(8, 4), X)
    for has_time in (_always, _never):  # and that is known, too
        assert alone.latencies_us([group], known, has_time) == {}


def test_integers_are_indices_and_no_zeros_where_they_divide(tmp_path: pathlib.Path) -> None:
    class Picks(nn.Module):
        def forward(self, x: torch.Tensor, i: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
            return x[i] + i[:, None] // n

    indices, divisors = torch.tensor([0, 1]), torch.tensor([[3], [2]])
    network = imported.read(Picks(), (X, indices, divisors), {}, target.parse("llvm"))
    every = groups.of(network.lowered, network.target)
    known = store.Store(tmp_path / "known.sqlite")
    found = alone.latencies_us(every, known, _always)
    assert found and all(us > 0.0 for each in found.values() for us in each.values())
    assert all(set(each) == {Contender.PYTORCH, Contender.TVM} for each in found.values())


@pytest.mark.parametrize(
    ("tuned_us", "runs", "in_turns"),
    [
        (100.0, Contender.PYTORCH, False),
        (12.0, Contender.FELIX, True),
        (1.0, Contender.FELIX, False),
        (None, Contender.TVM, True),
    ],
)
def test_only_what_is_near_is_timed_in_turns(
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    tuned_us: float | None,
    runs: Contender,
    in_turns: bool,
) -> None:
    """By what PyTorch takes alone, 10 us; in turns it takes 15 us, and programs take 10."""
    log = networks.timed_contenders(monkeypatch, 15.0)
    network, group = networks.of_one_group(nn.Linear(8, 4), X)
    program = payload.of(group.task.mod, group.task.target)
    outcome = None
    if tuned_us is not None:
        outcome = KnownResult(tuned_us=tuned_us, program=program, default_us=None, n_trials=1)
    known = store.Store(tmp_path / "known.sqlite")
    contenders = contest.Contest(network, known, {group.task.key: {Contender.PYTORCH: 10.0}})
    ((_, _, compared),) = contenders.compare([(group, outcome)])
    shipped = shipping.choose(group, outcome, compared, is_known=False)
    assert shipped.contender is runs
    assert bool(log) == in_turns == contenders.n_timed
    assert contenders.has_clear == (not in_turns)


def test_a_large_program_is_not_built(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    networks.timed_contenders(monkeypatch, 7.0)
    _, group = networks.of_one_group(nn.Linear(512, 512), torch.randn(256, 512))
    known = store.Store(tmp_path / "known.sqlite")
    (found,) = alone.latencies_us([group], known, _always).values()
    assert set(found) == {Contender.PYTORCH}


@pytest.mark.parametrize("kind", ["llvm", "cuda -arch=sm_90"])
def test_what_was_not_tuned_and_is_large_runs_in_pytorch(
    tmp_path: pathlib.Path, kind: str
) -> None:
    model, x = nn.Linear(512, 512), torch.randn(256, 512)
    network, group = networks.of_one_group(model, x, target=kind)
    known = store.Store(tmp_path / "known.sqlite")
    contenders = contest.Contest(network, known, {group.task.key: {Contender.PYTORCH: 100.0}})
    ((_, _, compared),) = contenders.compare([(group, None)])
    shipped = shipping.choose(group, None, compared, is_known=False)
    assert shipped.contender is Contender.PYTORCH and contenders.has_clear


def test_what_pytorch_takes_counts_where_there_is_no_time(tmp_path: pathlib.Path) -> None:
    network, group = networks.of_one_group(nn.Linear(8, 4), X)
    program = payload.of(group.task.mod, group.task.target)
    outcome = KnownResult(tuned_us=9.0, program=program, default_us=None, n_trials=1)
    known = store.Store(tmp_path / "known.sqlite")
    contenders = contest.Contest(network, known, {group.task.key: {Contender.PYTORCH: 10.0}})
    ((_, _, compared),) = contenders.compare([(group, outcome)], lambda: 0.0)
    shipped = shipping.choose(group, outcome, compared, is_known=False)
    assert shipped.contender is Contender.FELIX
    assert shipped.latencies_us == {Contender.FELIX: 9.0, Contender.PYTORCH: 10.0}
