"""Contenders of a group whose results are wrong do not ship, whichever they are."""

from __future__ import annotations

import dataclasses
import pathlib
from typing import Any

import pytest
import torch
from torch import nn

from felix import errors
from felix.builder import payload, task_program
from felix.database import store
from felix.database.outcome import KnownResult
from felix.network import groups
from felix.network.contenders import contest, excluded, shipping
from felix.network.contenders.shipping import Contender
from felix.runner.calls import cpu_calls
from felix.torch_calls import functions
from tests.support import networks
from tests.support.modules import Called

FELIX, TVM, PYTORCH = Contender


class _Affine(nn.Module):
    """x @ w^T + b, or - b: programs of one signature."""

    def __init__(self, sign: float, width: int = 8) -> None:
        super().__init__()
        self.sign, self.linear = sign, nn.Linear(width, width, bias=False)
        self.bias = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) + self.bias if self.sign > 0 else self.linear(x) - self.bias


def _outcome(
    group: groups.Group, tuned_us: float = 10.0, default_us: float | None = 15.0
) -> KnownResult:
    """What tuning that measured these latencies says, the group's program being the tuned one."""
    program = payload.of(group.task.mod, group.task.target)
    return KnownResult(tuned_us=tuned_us, program=program, default_us=default_us, n_trials=1)


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> dict[Contender, float]:
    """Latencies by contender, in us: all programs are as fast, unless a test says so."""
    latencies_us = dict.fromkeys(Contender, 10.0)

    def in_turns_us(calls: Any, inputs: Any, turns: int, burst: int, max_ratio: float) -> Any:
        return {name: [latencies_us[name]] for name in calls}

    monkeypatch.setattr(cpu_calls, "in_turns_us", in_turns_us)
    return latencies_us


@pytest.fixture
def wrong_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(functions.MAKING, "linear", lambda x, w, b: nn.functional.linear(x, w))


def _held(
    folder: pathlib.Path, group: Any, network: Any, outcome: KnownResult
) -> shipping.Shipped:
    contenders = contest.Contest(network, store.Store(folder / "known.sqlite"))
    compared = contenders.held(group, outcome)
    again = contest.Contest(network, store.Store(folder / "known.sqlite"))
    assert again.known(group, outcome) == compared  # what is wrong is stored, too
    return shipping.choose(group, outcome, compared, is_known=False)


def _wrong_felix(x: torch.Tensor, **latencies_us: float | None) -> Any:
    network, group = networks.of_one_group(_Affine(1.0), x)
    _, other = networks.of_one_group(_Affine(-1.0), x)
    return network, group, _outcome(other, **latencies_us)


def test_right_contenders_need_no_reference(
    tmp_path: pathlib.Path, timed: dict[Contender, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_program, "on_cpu", lambda *_: pytest.fail("nothing differs"))
    network, group = networks.of_one_group(_Affine(1.0), torch.randn(2, 8))
    shipped = _held(tmp_path, group, network, _outcome(group))
    assert shipped.contender is FELIX and not shipped.wrong
    assert set(shipped.latencies_us) == set(Contender)


def test_wrong_felix_does_not_ship(tmp_path: pathlib.Path, timed: dict[Contender, float]) -> None:
    timed |= {FELIX: 1.0, PYTORCH: 5.0}
    network, group, outcome = _wrong_felix(torch.randn(2, 8))
    shipped = _held(tmp_path, group, network, outcome)
    assert shipped.contender is PYTORCH
    assert set(shipped.wrong) == {FELIX} and FELIX not in shipped.latencies_us
    assert shipped.wrong[FELIX].startswith("Felix's result differs from the reference's: relative")
    assert "tolerance 1.0e-03" in shipped.reason


NOTHING = KnownResult(tuned_us=None, program=None, default_us=None, n_trials=0)


@pytest.mark.parametrize(
    ("default_us", "width", "ships", "contenders"),
    [
        (None, 8, TVM, {TVM, PYTORCH}),
        (None, 2048, PYTORCH, {PYTORCH}),  # it may take minutes
        (3.0, 2048, TVM, {TVM, PYTORCH}),  # tuning timed it
    ],
)
def test_a_default_is_a_contender_where_tuning_gave_nothing(
    tmp_path: pathlib.Path,
    timed: dict[Contender, float],
    default_us: float | None,
    width: int,
    ships: Contender,
    contenders: set[Contender],
) -> None:
    timed[TVM] = 3.0
    network, group = networks.of_one_group(_Affine(1.0, width), torch.randn(64, width))
    outcome = dataclasses.replace(NOTHING, default_us=default_us)
    shipped = _held(tmp_path, group, network, outcome)
    assert shipped.contender is ships and not shipped.wrong
    assert set(shipped.latencies_us) == contenders


def test_a_default_that_did_not_run_in_time_is_no_contender(
    tmp_path: pathlib.Path, timed: dict[Contender, float]
) -> None:
    network, group = networks.of_one_group(_Affine(1.0), torch.randn(2, 8))
    shipped = _held(tmp_path, group, network, _outcome(group, default_us=None))
    assert shipped.contender is FELIX and set(shipped.latencies_us) == {FELIX, PYTORCH}


def test_wrong_pytorch_alone_leaves_a_large_default(
    tmp_path: pathlib.Path, timed: dict[Contender, float], wrong_pytorch: None
) -> None:
    network, group = networks.of_one_group(_Affine(1.0, 2048), torch.randn(64, 2048))
    assert list(contest._assembled(network, group, NOTHING)) == [PYTORCH]
    shipped = _held(tmp_path, group, network, NOTHING)
    assert shipped.contender is TVM and set(shipped.wrong) == {PYTORCH}


@pytest.mark.parametrize("default_us", [1e4, None])
def test_wrong_felix_and_pytorch_leave_the_slow_default(
    tmp_path: pathlib.Path,
    timed: dict[Contender, float],
    wrong_pytorch: None,
    default_us: float | None,
) -> None:
    network, group, outcome = _wrong_felix(torch.randn(2, 8), default_us=default_us)
    timed[TVM] = 9e3
    shipped = _held(tmp_path, group, network, outcome)
    assert shipped.contender is TVM and set(shipped.wrong) == {FELIX, PYTORCH}
    assert shipped.latencies_us == {TVM: 9e3}
    assert "PyTorch's result differs" in str(shipped.without_pytorch)


def test_no_contender_is_right(
    tmp_path: pathlib.Path,
    timed: dict[Contender, float],
    wrong_pytorch: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    network, group, outcome = _wrong_felix(torch.randn(2, 8))
    program = contest.program

    def wrong(contender: Contender, *of: Any) -> Any:
        return program(FELIX if contender is TVM else contender, *of)

    monkeypatch.setattr(contest, "program", wrong)
    with pytest.raises(errors.TuningError, match=r"no program of the group .*TVM's default sched"):
        _held(tmp_path, group, network, outcome)


def test_inputs_are_positive_where_results_are_not_finite_otherwise(
    tmp_path: pathlib.Path, timed: dict[Contender, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    network, group = networks.of_one_group(Called(torch.log), torch.ones(64))
    monkeypatch.setitem(functions.WRITING, "log", torch.log2)
    shipped = _held(tmp_path, group, network, _outcome(group))
    assert shipped.contender is FELIX and set(shipped.wrong) == {PYTORCH}
    assert "inf" not in shipped.wrong[PYTORCH]  # off by 1 / ln 2, and by no NaN


def test_wrong_pytorch_does_not_ship_and_the_report_names_it(
    everything_known: pathlib.Path, timed: dict[Contender, float], wrong_pytorch: None
) -> None:
    timed[PYTORCH] = 1.0
    model, x = nn.Linear(8, 16), torch.randn(2, 8)
    fast = networks.optimize(model, (x,), everything_known, pytorch=True)
    (shipped,) = fast.report.groups
    assert shipped.contender is FELIX and set(shipped.wrong) == {PYTORCH}
    assert "differs" in (shipped.without_pytorch or "")
    assert set(shipped.latencies_us) == {FELIX, TVM}
    name = shipped.group.name
    assert f"left out: {name}: PyTorch's result differs from the reference's" in str(fast.report)
    (row,) = fast.report.to_json()["groups"]
    assert set(row["wrong"]) == {"pytorch"}


def test_a_contender_that_fails_is_left_out_alone() -> None:
    _, group = networks.of_one_group(_Affine(1.0), torch.randn(2, 8))
    drawn = excluded.inputs(group.task)

    def fails(*tensors: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("first\nno memory")

    check = excluded.of_task(group.task, drawn)
    mains = {TVM: lambda x, w, b: x @ w.T + b, PYTORCH: fails}
    assert check.wrong(mains) == {PYTORCH: "PyTorch does not run it: no memory"}
    with pytest.raises(RuntimeError, match="no memory"):
        check.wrong({FELIX: fails})
    excluded.check_left("of the group g", mains, {PYTORCH: "why"})
    with pytest.raises(errors.TuningError, match="group g is right here: why; also"):
        excluded.check_left("of the group g", mains, {PYTORCH: "why", TVM: "also"})
