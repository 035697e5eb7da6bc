"""Traces of TVM as sketches and decisions."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

import felix
from felix import errors
from felix.metaschedule import trace_lookup
from felix.search import scoring


class Model(torch.nn.Module):
    """Any deterministic function of the rows that real sketches have."""

    def forward(self, rows: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return 1e-3 * (rows.mean(dim=2) * mask).sum(dim=1)


def trace_scorer(sketches: list[felix.Sketch]) -> trace_lookup.TraceScorer:
    return trace_lookup.TraceScorer(scoring.Scorer(sketches, Model()), sketches)


@pytest.mark.parametrize(
    "make_task",
    [
        lambda: felix.workloads.gemm(64, 64, 64, target="llvm -num-cores 2", epilogue="bias+relu"),
        lambda: felix.workloads.softmax((64, 64), target="llvm -num-cores 2"),
        lambda: felix.workloads.conv2d(1, 8, 8, 16, 16, 3, padding=1, target="cuda -arch=sm_80"),
    ],
    ids=["gemm-llvm", "softmax-llvm", "conv2d-cuda"],
)
def test_traces_after_postprocessors_give_their_decisions(
    make_task: Callable[[], felix.Task],
) -> None:
    sketches = felix.trace_sketches(make_task())
    scorer = trace_scorer(sketches)
    for index, sketch in enumerate(sketches):
        for row in sketch.sample(3, seed=1):
            trace = sketch.schedule(row).trace
            assert len(trace.insts) != len(sketch.trace.insts)  # postprocessors are appended
            assert scorer.find(trace) == (index, tuple(row.tolist()))
            ln_latency = scorer.scorer.predict(index, row[None])
            np.testing.assert_allclose(scorer.predict([trace]), ln_latency)


def test_a_trace_of_no_sketch_is_unknown() -> None:
    task = felix.workloads.gemm(64, 64, 64, target="llvm -num-cores 2", epilogue="bias+relu")
    sketches = felix.trace_sketches(task)
    scorer = trace_scorer(sketches[:1])
    other = sketches[1].schedule(sketches[1].sample(1, seed=1)[0]).trace
    known = sketches[0].schedule(sketches[0].sample(1, seed=1)[0]).trace
    assert scorer.find(other) is None
    assert np.isnan(scorer.predict([other, known])).tolist() == [True, False]
    with pytest.raises(errors.UnsupportedSchedule):
        scorer.sketch_of(other)
