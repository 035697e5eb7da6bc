"""Planned groups: right results, no measuring the second time, what is known of a group."""

from __future__ import annotations

import pathlib
from typing import Any

import pytest
import torch
import tvm
from tvm import te

import felix
from benchmarks.networks import transformers
from felix import errors, workloads
from felix.frontend import Judgement
from felix.frontend.programs.planning import merged, norms, planner
from felix.known_results import outcome, store
from felix.measure.calls import cpu_calls
from felix.network import judging
from felix.network.contenders.shipping import Contender
from felix.sketch import sketch
from felix.task import Task
from tests.support import networks, row_chains


def test_planned_groups_agree_and_are_known_the_second_time(tmp_path: pathlib.Path) -> None:
    torch.manual_seed(0)
    model = transformers._PreNormBlock(16, 2, 32).eval()
    x = torch.randn(1, 6, 16)
    first_pool, second_pool = networks.Pool(), networks.Pool()
    first = networks.optimize(model, (x,), tmp_path, first_pool, fusion="planned", trials=64)
    with torch.no_grad():
        torch.testing.assert_close(first(x), model(x), rtol=1e-4, atol=1e-5)
    assert first_pool.n_measured
    by_rules = networks.optimize(model, (x,), tmp_path / "rules")
    assert _n_calls(first) < _n_calls(by_rules)
    second = networks.optimize(model, (x,), tmp_path, second_pool, fusion="planned", trials=64)
    assert second_pool.n_measured == 0
    assert _n_calls(second) == _n_calls(first)


def _n_calls(fast: felix.network.optimized.OptimizedNetwork) -> int:
    return sum(each.group.calls for each in fast.report.groups)


@pytest.mark.parametrize("fusion", ["best", "fuseops", "planned-as-written"])
def test_an_unknown_fusion_is_refused(fusion: str) -> None:
    with pytest.raises(errors.WorkloadError, match=f"one of rules, planned, got '{fusion}'"):
        felix.optimize(torch.nn.ReLU(), (torch.randn(2),), fusion=fusion)


def test_pytorch_contends_for_planned_groups(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def in_turns_us(calls: Any, inputs: Any, turns: int, burst: int, hopeless: float) -> Any:
        return {name: [1.0 if name is Contender.PYTORCH else 10.0] for name in calls}

    monkeypatch.setattr(cpu_calls, "in_turns_us", in_turns_us)
    for rewriting in (merged, norms):  # groups are of the model's own operators
        monkeypatch.setattr(rewriting, "extended", lambda read: read)
    torch.manual_seed(0)
    model = transformers._PreNormBlock(16, 2, 32).eval()
    x = torch.randn(1, 6, 16)
    fast = networks.optimize(model, (x,), tmp_path, fusion="planned", pytorch=True)
    assert {each.contender for each in fast.report.groups} == {Contender.PYTORCH}
    with torch.no_grad():
        torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-5)


def test_folded_norms_run_and_are_named(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planner, "NEW", 0.1)  # folding is chosen wherever it is legal
    torch.manual_seed(0)
    model = transformers._PreNormBlock(32, 2, 64).to(torch.bfloat16).eval()
    x = torch.randn(1, 6, 32).to(torch.bfloat16)
    fast = networks.optimize(model, (x,), tmp_path, fusion="planned", trials=8)
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
        (workloads.softmax((128, 768), target=CUDA), Judgement(1, False)),
        (row_chains.masked_softmax(1536, 128, CUDA), Judgement(1, False)),
        (workloads.gemm(128, 128, 128, target=CUDA), Judgement(1, False)),
        (workloads.gemm(128, 128, 128, dtype="bfloat16", target=CUDA), Judgement(1, True)),
    ],
    ids=["softmax", "row chain", "gemm", "tensor cores"],
)
def test_kernels_and_templates(task: Task, expected: Judgement) -> None:
    assert judging.SketchJudge().judge(task) == expected


def test_two_results_are_two_kernels() -> None:
    x = te.placeholder((64, 64), name="x")
    first = te.compute((64, 64), lambda i, j: x[i, j] + 1, name="first")
    second = te.compute((64, 64), lambda i, j: x[j, i] * 2, name="second")
    task = Task.from_te([x, first, second], CUDA, "two")
    assert judging.SketchJudge().judge(task) == Judgement(2, False)


@pytest.fixture
def no_traces(monkeypatch: pytest.MonkeyPatch) -> None:
    """No trace sketch can be modelled."""

    def none(task: Task) -> None:
        raise errors.UnsupportedSchedule("no sketch")

    monkeypatch.setattr(sketch, "trace_sketches", none)


def test_a_program_without_sketches_has_no_kernels(no_traces: None) -> None:
    task = workloads.softmax((8, 8), target="llvm")
    assert judging.SketchJudge().judge(task) == Judgement(None)


def test_a_generated_kernel_needs_no_traces(no_traces: None) -> None:
    task = workloads.gemm(128, 128, 128, target=CUDA)
    assert judging.SketchJudge().judge(task) == Judgement(1, False)


def test_latencies_are_known_results(tmp_path: pathlib.Path) -> None:
    known = store.Store(tmp_path / "known.sqlite")
    task = workloads.softmax((8, 8), target="llvm")
    judge = judging.SketchJudge(known)
    assert judge.latency_us(task) is None
    assert judging.SketchJudge().latency_us(task) is None
    known.add(
        task,
        outcome.Outcome(schedule=None, failure="slow", tuned_us=None, default_us=7.0, n_trials=1),
    )
    assert judge.latency_us(task) == 7.0
    assert isinstance(task.mod, tvm.IRModule)


def test_what_was_judged_is_known(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known, task = store.Store(tmp_path / "known.sqlite"), workloads.softmax((8, 8), target=CUDA)
    judgement = judging.SketchJudge(known).judge(task)

    def none(task: Task) -> None:
        raise errors.UnsupportedSchedule("no sketch")

    monkeypatch.setattr(sketch, "trace_sketches", none)
    assert judging.SketchJudge(known).judge(task) == judgement
    assert (
        judging.SketchJudge(known).judge(workloads.softmax((8, 9), target=CUDA)).n_kernels is None
    )
    monkeypatch.setattr(judging, "SOURCES", ("network/judging.py",))  # as other code would
    assert judging.SketchJudge(known).judge(task).n_kernels is None
