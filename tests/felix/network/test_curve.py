"""The latency of a network while it is tuned."""

from __future__ import annotations

import dataclasses
import json
import math
import pathlib
import time
from typing import Any

import pytest
import torch
from torch import nn

from felix import events, workloads
from felix.network import curve, optimize
from felix.network.contenders import alone
from felix.network.contenders.shipping import Contender
from tests.support import networks


def _trial(index: int, latency_us: float | None) -> events.Trial:
    return events.Trial(
        task="t",
        task_index=index,
        trial=1,
        round=0,
        latency_us=latency_us,
        error=None,
        message="",
        best_us=latency_us,
        is_best=True,
        elapsed_s=0.0,
    )


def _started() -> events.Started:
    return events.Started(
        tasks=("t",), strategy="local", trials=1, seconds=None, resumed_trials=0, model=""
    )


def test_a_point_is_the_faster_of_what_is_known_and_measured() -> None:
    every = [workloads.gemm(8, 8, n, target="llvm") for n in (8, 16, 32)]
    first, second, known = (dataclasses.replace(task, weight=2) for task in every)
    heard: list[events.Event] = []
    begun_s = time.monotonic() - 10.0
    known_us = {first.key: 5.0, known.key: 1.0}
    made = curve.Curve([first, second, known], [first, second], known_us, begun_s, heard.append)
    made(_started())
    assert not made.points  # nothing is known of the second task
    made(_trial(1, 7.0))
    made(_trial(0, 6.0))
    made(_trial(1, None))
    made(_trial(0, 4.0))
    made(events.Baseline(task="t", task_index=1, latency_us=3.0, message="", program="p"))
    assert [us for _, us in made.points] == [26.0, 24.0, 16.0]
    assert all(10.0 <= elapsed_s < 60.0 for elapsed_s, _ in made.points)
    own = [each for each in heard if isinstance(each, events.NetworkLatency)]
    assert [(each.elapsed_s, each.latency_us) for each in own] == made.points
    assert len(heard) == 6 + len(own)


def test_a_call_tells_and_reports_its_curve(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def timed(every: Any, *_: Any) -> dict[str, dict[Contender, float]]:
        return {each.task.key: {Contender.PYTORCH: 50.0} for each in every}

    monkeypatch.setattr(alone, "latencies_us", timed)
    networks.timed_contenders(monkeypatch, 50.0)
    heard: list[events.Event] = []
    model, x = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4)), torch.randn(2, 8)
    fast = networks.optimize(model, (x,), tmp_path, pytorch=True, on_event=heard.append)
    points = fast.report.curve
    assert points[0][1] == 50.0 * sum(each.group.calls for each in fast.report.groups)
    assert points[-1][1] < points[0][1] and math.isfinite(points[0][1])
    told = [each for each in heard if isinstance(each, events.NetworkLatency)]
    assert [each.latency_us for each in told] == [us for _, us in points]
    folder = fast.export(tmp_path / "net")
    assert "<svg" in (folder / "convergence.svg").read_text()
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["report"]["curve"] == [list(point) for point in points]
    again = networks.optimize(model, (x,), tmp_path, pytorch=True)
    assert again.report.curve == () and optimize.DEFAULT_SECONDS == 300.0
    assert not (again.export(tmp_path / "again") / "convergence.svg").exists()
