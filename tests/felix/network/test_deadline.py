"""A call takes the seconds that it was given."""

from __future__ import annotations

import pathlib

import pytest
import torch
from torch import nn

from felix import errors
from felix.network import deadline as deadlines
from felix.network.contenders import alone
from felix.network.contenders.shipping import Contender
from felix.network.report import RunBy
from tests.support import networks, waiting

X = torch.randn(2, 8)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What `Deadline` takes for the time."""
    return waiting.clock(monkeypatch)


def test_seconds_are_shared_out(clock: list[float]) -> None:
    deadline = deadlines.Deadline(clock[0], 60.0)
    few, many = deadline.tuning_s(10, "llvm"), deadline.tuning_s(1000, "llvm")
    assert few == pytest.approx(60.0 - 10 * 0.15 - 4.0) and many == 30.0
    assert deadline.can_tune(1000, "llvm") and deadline.can_build(1000, "llvm")
    assert deadline.can_sketch() and deadline.can_lower()
    clock[0] += 57.0
    assert not deadline.can_lower() and not deadline.can_sketch()
    assert not deadline.can_tune(1000, "llvm") and not deadline.can_build(1000, "llvm")
    assert deadline.can_build(10, "llvm")
    assert deadline.comparing_s(10, "llvm") == pytest.approx(3.0 - 0.5 - 4.0)


def test_without_seconds_a_call_takes_what_it_takes() -> None:
    assert deadlines.NEVER.can_tune(1000, "cuda") and deadlines.NEVER.can_build(1000, "cuda")
    assert deadlines.NEVER.comparing_s(1000, "cuda") == float("inf")


@pytest.mark.parametrize("is_imported", [False, True])
def test_without_time_for_anything_pytorch_runs_the_model(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, is_imported: bool
) -> None:
    model, pool = nn.Sequential(nn.Linear(8, 8), nn.ReLU()), networks.Pool()
    monkeypatch.setattr(deadlines.Deadline, "can_lower", lambda deadline: is_imported)
    fast = networks.optimize(model, (X,), tmp_path, pool, seconds=1e-3, trials=None, pytorch=True)
    assert fast.report.runs is RunBy.PYTORCH and pool.n_measured == 0
    assert fast.report.reason == "seconds" and bool(fast.report.groups) == is_imported
    assert "no time to build its network: give more seconds" in str(fast.report)
    networks.assert_same(fast, model, X)
    with pytest.raises(errors.TuningError, match="give more seconds"):
        fast.export(tmp_path / "net")


def test_without_pytorch_the_network_is_built_all_the_same(tmp_path: pathlib.Path) -> None:
    model, pool = nn.Linear(8, 8), networks.Pool()
    fast = networks.optimize(model, (X,), tmp_path, pool, seconds=1e-3, trials=None)
    assert fast.report.runs is RunBy.FELIX and fast.report.reason == "seconds"
    assert fast.report.groups[0].contender is Contender.TVM
    timing = fast.report.timing  # of the call that checked it
    assert timing is not None and timing.repeats == 1 and timing.network_us > 0.0
    networks.assert_same(fast, model, X)


def test_groups_that_there_is_no_time_to_compare_run_in_pytorch(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one that computes most is compared."""
    log = networks.timed_contenders(monkeypatch, 99.0)
    monkeypatch.setattr(alone, "latencies_us", lambda *arguments: {})
    left_s = iter([10.0, 10.0])
    monkeypatch.setattr(deadlines.Deadline, "comparing_s", lambda *arguments: next(left_s, -1.0))
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 64), nn.Linear(64, 4))
    fast = networks.optimize(model, (X,), tmp_path, trials=12, pytorch=True)
    by_work = sorted(fast.report.groups, key=lambda each: -each.group.task.flops)
    assert [each.contender for each in by_work] == [
        Contender.FELIX,
        Contender.PYTORCH,
        Contender.PYTORCH,
    ]
    assert by_work[1].reason == "there was no time to compare it: PyTorch's operators"
    assert len(log) == 1
    networks.assert_same(fast, model, X)
