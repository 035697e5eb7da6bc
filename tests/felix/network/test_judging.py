"""What sketches and known results say of a candidate group."""

from __future__ import annotations

import pathlib

import pytest
import tvm
from tvm import te

from felix import errors, workloads
from felix.frontend import Judgement
from felix.known_results import outcome, store
from felix.network import judging
from felix.sketch import sketch
from felix.task import Task
from tests.support import row_chains

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
