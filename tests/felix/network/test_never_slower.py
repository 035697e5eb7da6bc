"""What is returned is not slower than the model, or than the network without tuning."""

from __future__ import annotations

import functools
import json
import pathlib
import threading
import time
from typing import Any, ClassVar

import pytest
import torch
from torch import nn

from felix import errors
from felix.network import checking, in_turns, pytorch_model
from felix.network.contenders.shipping import Contender
from felix.network.report import RunBy
from tests.support import networks, run_py


class Counted(nn.Module):
    """A layer with dropout; it and its copies count calls together."""

    counts: ClassVar[list[int]] = []

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.dropout = nn.Linear(8, 8), nn.Dropout()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The layer's outputs, some of them 0 in training."""
        if not torch.compiler.is_exporting():
            self.counts.append(1)
        return self.dropout(self.linear(x))


X = torch.randn(2, 8)


def test_a_faster_model_runs_itself(
    everything_known: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    networks.timed_contenders(monkeypatch, 99.0)
    networks.timed_wholes(monkeypatch, 1.5)
    model = Counted()
    fast = networks.optimize(model, (X,), everything_known, pytorch=True)
    report = fast.report
    assert report.runs is RunBy.PYTORCH and report.call_us == 20.0
    assert "PyTorch runs the model: Felix's network takes 1.50 times" in str(report)
    assert json.loads(json.dumps(report.to_json()))["runs"] == "pytorch"
    n_calls = len(model.counts)
    assert model.training
    model.eval()
    networks.assert_same(fast, model, X + 1)
    assert len(model.counts) == n_calls + 2
    model.dropout.train()
    expected = model.linear(X)
    assert torch.equal(fast(X), expected)  # in inference mode, and the model's own mode stays
    assert model.dropout.training and not fast(X).requires_grad
    with torch.no_grad():
        model.linear.weight.zero_()
        assert torch.equal(fast(X), model.linear(X))  # its parameters are the model's
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert fast(X).dtype is torch.float32


@pytest.mark.slow("runs an artifact in a process")
def test_the_artifact_of_such_a_network_runs_without_the_model(
    everything_known: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    networks.timed_contenders(monkeypatch, 99.0)
    networks.timed_wholes(monkeypatch, 1.5)
    fast = networks.optimize(Counted(), (X,), everything_known, pytorch=True)
    folder = fast.export(everything_known / "net")
    done = run_py.run(folder, "--json", "--repeats", "3")
    assert done.returncode == 0, done.stderr
    assert "PyTorch runs the model" in (folder / "report.txt").read_text()


def test_a_faster_network_runs(
    everything_known: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    networks.timed_contenders(monkeypatch, 99.0)
    model = Counted()
    fast = networks.optimize(model, (X,), everything_known, pytorch=True)
    assert fast.report.runs is RunBy.FELIX and fast.report.call_us == 10.0
    assert "PyTorch eager takes 2.00 times as long" in str(fast.report)
    n_calls = len(model.counts)
    fast(X)
    assert len(model.counts) == n_calls


def test_groups_that_take_longer_in_the_network_go_back_to_pytorch(
    everything_known: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A product without a schedule, which was the faster one alone."""
    networks.timed_contenders(monkeypatch, 99.0)
    networks.timed_wholes(monkeypatch, 1.5, 0.8)
    model, x = nn.Linear(512, 512).eval(), torch.randn(256, 512)
    fast = networks.optimize(model, (x,), everything_known, pytorch=True)
    (group,) = fast.report.groups
    assert fast.report.runs is RunBy.FELIX and group.contender is Contender.PYTORCH
    assert group.reason.startswith("in the network felix takes")
    networks.assert_close(fast(x), model(x))
    networks.timed_wholes(monkeypatch, 1.5, 1.2)
    fast = networks.optimize(model, (x,), everything_known, pytorch=True)
    assert fast.report.runs is RunBy.PYTORCH and "1.20 times" in str(fast.report)


def test_without_pytorch_the_network_without_tuning_stands_in(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pool says that the tuned program is a little faster; as a whole it is not."""
    pool = networks.Pool(lambda program, task: 0.9 * networks.UNSCHEDULED_US)
    networks.timed_wholes(monkeypatch, 1.2)
    model = Counted().eval()
    fast = networks.optimize(model, (X,), tmp_path, pool)
    assert fast.report.runs is RunBy.UNTUNED
    assert fast.report.groups[0].contender is Contender.TVM
    assert "it runs untuned: the tuned network takes 1.20 times as long" in str(fast.report)
    networks.assert_same(fast, model, X)
    networks.timed_wholes(monkeypatch, 0.9)
    fast = networks.optimize(model, (X,), tmp_path, pool)
    assert fast.report.runs is RunBy.FELIX
    assert fast.report.groups[0].contender is Contender.FELIX


def test_a_network_without_tuning_that_cannot_be_near_is_not_built(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    timed: list[set[str]] = []

    def latencies_us(calls: Any, ours: str, *, is_gpu: bool, budget_s: float) -> Any:
        timed.append(set(calls))
        return {name: [10.0] for name in calls}

    monkeypatch.setattr(in_turns, "latencies_us", latencies_us)
    networks.optimize(nn.Linear(8, 8), (X,), tmp_path)
    assert timed == [{"felix", pytorch_model.EAGER}]


class Locked(nn.Module):
    """A layer that cannot be copied."""

    def __init__(self) -> None:
        super().__init__()
        self.dropout, self.lock = nn.Dropout(), threading.Lock()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The inputs, some of them 0 in training."""
        return self.dropout(x) * 2.0


def test_a_model_that_cannot_be_copied_is_in_inference_mode_for_the_call() -> None:
    model = Locked()
    model.eval().dropout.train()
    assert torch.equal(pytorch_model.eager(model)(X), X * 2.0)
    assert model.dropout.training and not model.training


def test_the_network_without_tuning_is_no_rival_if_it_is_wrong(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = networks.Pool(lambda program, task: 0.9 * networks.UNSCHEDULED_US)
    checks: list[Any] = []
    before = checking.check

    def check(*arguments: Any) -> checking.Checked:
        checks.append(arguments)
        if len(checks) == 2:
            raise errors.TuningError("it differs")
        return before(*arguments)

    monkeypatch.setattr(checking, "check", check)
    networks.timed_wholes(monkeypatch, 1.2)
    fast = networks.optimize(Counted(), (X,), tmp_path, pool)
    assert fast.report.runs is RunBy.FELIX and len(checks) == 2


def test_a_clear_difference_takes_few_turns() -> None:
    timed = in_turns.latencies_us(
        {"ours": lambda: time.sleep(0.001), "other": lambda: time.sleep(0.01)},
        "ours",
        is_gpu=False,
    )
    assert [len(each) for each in timed.values()] == [in_turns.LOOKS[0]] * 2
    assert in_turns.ratio(timed["ours"], timed["other"]).high < 1.0


def test_turns_of_long_calls_end() -> None:
    calls: list[str] = []

    def called(name: str) -> None:
        calls.append(name)
        time.sleep(0.01)

    timed = in_turns.latencies_us(
        {name: functools.partial(called, name) for name in ("ours", "other")},
        "ours",
        is_gpu=False,
        budget_s=1e-3,
    )
    assert [len(each) for each in timed.values()] == [in_turns.LEAST_TURNS] * 2
    assert calls == ["ours", "other", "ours", "other", "other", "ours", "ours", "other"]


def test_the_interval_of_a_ratio() -> None:
    """Of 100 values the 95 % interval of the median is between the 40th and the 60th."""
    ours = [float(value) for value in range(1, 101)]
    ratio = in_turns.ratio(ours[::-1], [1.0] * 100)
    assert (ratio.median, ratio.low, ratio.high) == (50.5, 41.0, 60.0)
    assert in_turns.ratio([2.0], [1.0]) == in_turns.Ratio(2.0, 2.0, 2.0)
    assert str(in_turns.Ratio(1.5, 1.25, 2.0)) == "1.50 times as long (1.25 to 2.00)"


def test_threads_call_a_network_that_shares_pytorchs_threads(
    everything_known: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    networks.timed_contenders(monkeypatch, 99.0)
    model = Counted().eval()
    fast = networks.optimize(model, (X,), everything_known, pytorch=True)
    with torch.no_grad():
        expected = model(X)
    results: list[torch.Tensor] = []
    threads = [threading.Thread(target=lambda: results.append(fast(X))) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    for each in results:
        networks.assert_close(each, expected)
    assert len(results) == 4
