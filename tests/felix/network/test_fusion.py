"""Planned groups: right results, no measuring the second time, what is known of a group."""

from __future__ import annotations

import pathlib

import pytest
import torch
import tvm
from torch import nn
from tvm import te

import felix
from felix import errors, frontend, workloads
from felix.database import outcome, store
from felix.frontend import Schedules
from felix.frontend.programs.planning import merged, norms, planner
from felix.network import group_costs
from felix.network.contenders.shipping import Contender
from felix.space import sketch
from felix.task import Task
from tests.support import networks, row_chains


class _Gated(nn.Module):
    """A product of two parts of one product, which rules split by a program of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.both = nn.Linear(16, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, value = self.both(x).chunk(2, -1)
        return torch.relu(gate) * value


@pytest.mark.slow("tunes a network twice")
def test_planned_groups_agree_and_are_known_the_second_time(tmp_path: pathlib.Path) -> None:
    model, x = _Gated().eval(), torch.randn(6, 16)
    first_pool, second_pool = networks.Pool(), networks.Pool()
    first = networks.optimize(model, (x,), tmp_path, first_pool, fusion="planned", trials=6)
    networks.assert_same(first, model, x)
    assert first_pool.n_measured
    n_calls = sum(each.group.calls for each in first.report.groups)
    by_rules = frontend.lowered(frontend.import_torch(model, (x,)), networks.TARGET)
    assert n_calls < frontend.calls(by_rules).total()
    second = networks.optimize(model, (x,), tmp_path, second_pool, fusion="planned", trials=6)
    assert second_pool.n_measured == 0
    assert sum(each.group.calls for each in second.report.groups) == n_calls


@pytest.mark.parametrize("fusion", ["best", "fuseops", "planned-as-written"])
def test_an_unknown_fusion_is_refused(fusion: str) -> None:
    with pytest.raises(errors.WorkloadError, match=f"one of rules, planned, got '{fusion}'"):
        felix.optimize(torch.nn.ReLU(), (torch.randn(2),), fusion=fusion)


@pytest.mark.slow("tunes a network once more")
def test_pytorch_contends_for_planned_groups(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    networks.timed_contenders(monkeypatch, 1.0)
    for rewriting in (merged, norms):  # groups are of the model's own operators
        monkeypatch.setattr(rewriting, "extended", lambda read: read)
    model, x = _Gated().eval(), torch.randn(6, 16)
    fast = networks.optimize(model, (x,), tmp_path, fusion="planned", pytorch=True)
    assert {each.contender for each in fast.report.groups} == {Contender.PYTORCH}
    networks.assert_same(fast, model, x)


@pytest.mark.slow("optimizes a network again")
def test_folded_norms_run_and_are_named(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planner, "NEW", 0.1)  # folding is chosen wherever it is legal
    layers = nn.LayerNorm(32), nn.Linear(32, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 32)
    model, x = nn.Sequential(*layers).bfloat16().eval(), torch.randn(6, 32).bfloat16()
    fast = networks.optimize(model, (x,), tmp_path, fusion="planned", trials=1)
    assert fast.report.max_error < 0.05
    said = {each.group.name: each.group.rewriting for each in fast.report.groups}
    products = [name for name in said if "normed_product" in name]
    assert len(products) == 2 and all("norm is folded" in str(said[name]) for name in products)
    assert not any("norm_weights" in name for name in said)
    assert "computed in another way: norm_statistics: " in str(fast.report)


# ---------------------------------------- what sketches and known results say of a candidate group


CUDA = "cuda -arch=sm_90"


@pytest.mark.parametrize(
    ("task", "expected"),
    [
        (workloads.softmax((128, 768), target=CUDA), Schedules(1, False)),
        (row_chains.masked_softmax(1536, 128, CUDA), Schedules(1, False)),
        (workloads.gemm(128, 128, 128, target=CUDA), Schedules(1, False)),
        (workloads.gemm(128, 128, 128, dtype="bfloat16", target=CUDA), Schedules(1, True)),
    ],
    ids=["softmax", "row chain", "gemm", "tensor cores"],
)
def test_kernels_and_templates(task: Task, expected: Schedules) -> None:
    assert group_costs.SketchCosts().schedules([task]) == [expected]


def test_two_results_are_two_kernels() -> None:
    x = te.placeholder((64, 64), name="x")
    first = te.compute((64, 64), lambda i, j: x[i, j] + 1, name="first")
    second = te.compute((64, 64), lambda i, j: x[j, i] * 2, name="second")
    task = Task.from_te([x, first, second], CUDA, "two")
    assert group_costs.SketchCosts().schedules([task]) == [Schedules(2, False)]


def _none(*args: object) -> None:
    raise errors.UnsupportedSchedule("no sketch")


@pytest.fixture
def no_traces(monkeypatch: pytest.MonkeyPatch) -> None:
    """No trace sketch can be modelled."""
    monkeypatch.setattr(sketch, "TraceSketch", _none)


def test_a_program_without_sketches_has_no_kernels(no_traces: None) -> None:
    task = workloads.softmax((8, 8), target="llvm")
    assert group_costs.SketchCosts().schedules([task]) == [Schedules(None)]


def test_a_generated_kernel_needs_no_traces(no_traces: None) -> None:
    task = workloads.gemm(128, 128, 128, target=CUDA)
    assert group_costs.SketchCosts().schedules([task]) == [Schedules(1, False)]


def test_latencies_are_known_results(tmp_path: pathlib.Path) -> None:
    known = store.Store(tmp_path / "known.sqlite")
    task = workloads.softmax((8, 8), target="llvm")
    costs = group_costs.SketchCosts(known)
    assert costs.latency_us(task) is None
    assert group_costs.SketchCosts().latency_us(task) is None
    known.add(
        task,
        outcome.KnownResult(
            schedule=None, failure="slow", tuned_us=None, default_us=7.0, n_trials=1
        ),
    )
    assert costs.latency_us(task) == 7.0
    assert isinstance(task.mod, tvm.IRModule)


def test_what_was_found_of_sketches_is_known(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known, task = store.Store(tmp_path / "known.sqlite"), workloads.softmax((8, 8), target=CUDA)
    other = workloads.softmax((8, 9), target=CUDA)
    (schedules,) = group_costs.SketchCosts(known).schedules([task])
    monkeypatch.setattr(sketch, "TraceSketch", _none)
    found = group_costs.SketchCosts(known).schedules([task, other])
    assert found == [schedules, Schedules(None)]
    monkeypatch.setattr(group_costs, "SOURCES", ("network/group_costs.py",))  # as other code would
    assert group_costs.SketchCosts(known).schedules([task]) == [Schedules(None)]


def test_without_time_for_sketches_groups_count_as_one_kernel(tmp_path: pathlib.Path) -> None:
    """What was found before is used all the same."""
    known, task = store.Store(tmp_path / "known.sqlite"), workloads.softmax((4, 8), target=CUDA)
    late = group_costs.SketchCosts(known, has_time=lambda: False)
    assert late.schedules([task]) == [Schedules(n_kernels=1)]
    found = group_costs.SketchCosts(known).schedules([task])
    known.add_findings([(task, late._subject, {"n_kernels": 3, "has_template": True})])
    assert found != late.schedules([task]) == [Schedules(n_kernels=3, has_template=True)]
