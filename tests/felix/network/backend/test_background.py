"""Graphs that are built, and tasks that are tuned, between the calls of a compiled model."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

import psutil
import pytest
import torch
from torch import nn

from felix import errors
from felix.database import store
from felix.network.backend import background, entry, settings, tracing
from felix.processes import child, process_tree
from tests.support import backend, networks, waiting

_SECONDS = 60.0


class _Tuner:
    """Tunes nothing; it ends when it is told to, and says what was asked of it."""

    made: list[_Tuner]

    def __init__(self, keys: Sequence[str], chosen: settings.Settings) -> None:
        self.keys, self.chosen = keys, chosen
        self.asked: list[str] = []
        self.may_end = threading.Event()
        self.made.append(self)

    @property
    def has_ended(self) -> bool:
        return self.may_end.is_set()

    def pause(self) -> None:
        self.asked.append("pause")

    def resume(self) -> None:
        self.asked.append("resume")

    def end(self) -> None:
        self.may_end.set()

    def close(self) -> str:
        return ""


@pytest.fixture
def tuners(monkeypatch: pytest.MonkeyPatch) -> list[_Tuner]:
    """The tuners that were started."""
    monkeypatch.setattr(_Tuner, "made", [], raising=False)
    monkeypatch.setattr(background, "_Tuner", _Tuner)
    return _Tuner.made


def test_the_first_call_is_pytorch_and_later_ones_run_what_is_known(
    everything_known: pathlib.Path, tuners: list[_Tuner]
) -> None:
    model, x = nn.Linear(8, 4).eval(), torch.randn(3, 8)
    fast = backend.compiled(model, everything_known, seconds=_SECONDS)
    with torch.no_grad():
        assert torch.equal(fast(x), model(x))
        assert "in the background" in str(entry.backend_report())
        waiting.until(lambda: tuners)
        assert backend.tuned_operators() == {"linear"}
        networks.assert_close(fast(x), model(x))
        networks.assert_close(fast(x + 1.0), model(x + 1.0))
    (tuner,) = tuners
    assert tuner.keys == backend.parts()[0].queued and tuner.chosen.seconds == _SECONDS
    tuner.end()


def test_graphs_are_built_again_with_what_was_found(
    tmp_path: pathlib.Path, tuners: list[_Tuner]
) -> None:
    model, x = nn.Linear(8, 4).eval(), torch.randn(3, 8)
    fast = backend.compiled(model, tmp_path, seconds=_SECONDS)
    with torch.no_grad():
        fast(x)
        waiting.until(lambda: tuners)
        assert not backend.tuned_operators()
        assert backend.learn(tmp_path) == 1
        tuners[0].end()
        waiting.until(backend.tuned_operators)
        networks.assert_close(fast(x), model(x))
    assert "1 tasks were tuned" in str(entry.backend_report())


def test_nothing_is_tuned_while_a_call_runs(tmp_path: pathlib.Path, tuners: list[_Tuner]) -> None:
    fast = backend.compiled(torch.relu, tmp_path, seconds=_SECONDS)
    fast(torch.ones(4))
    waiting.until(lambda: tuners and "resume" in tuners[0].asked)
    (tuner,) = tuners
    assert "pause" not in tuner.asked
    fast(torch.ones(4))
    assert "pause" in tuner.asked
    waiting.until(lambda: tuner.asked[-1] == "resume")
    behind = entry.backend._background
    assert behind is not None
    with behind.call():
        time.sleep(2 * background.IDLE_S)
        assert tuner.asked[-1] == "pause"
    waiting.until(lambda: tuner.asked[-1] == "resume")
    tuner.end()


def test_a_graph_that_comes_when_the_work_is_done_is_worked_on(
    everything_known: pathlib.Path, tuners: list[_Tuner]
) -> None:
    x = torch.ones(4)
    for number, call in enumerate((torch.relu, torch.exp), 1):
        fast = backend.compiled(call, everything_known, seconds=_SECONDS)
        fast(x)
        waiting.until(lambda number=number: len(tuners) == number)
        tuners[-1].end()
        behind = entry.backend._background
        assert behind is not None
        waiting.until(lambda behind=behind: not behind.is_active)
        networks.assert_close(fast(x), call(x))
    assert backend.tuned_operators() == {"relu", "exp"}


def test_what_a_graph_writes_is_written_by_calls_alone(
    everything_known: pathlib.Path, tuners: list[_Tuner]
) -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros(4))

        def forward(self, x: torch.Tensor, cache: torch.Tensor) -> torch.Tensor:
            self.count += 1.0
            cache[0] += 1.0
            return torch.relu(x) + self.count

    model, x, cache = Counting(), torch.randn(4), torch.zeros(2)
    fast = backend.compiled(model, everything_known, seconds=_SECONDS)
    with torch.no_grad():
        for number in range(1, 4):
            networks.assert_close(fast(x, cache), torch.relu(x) + number)
            waiting.until(lambda: tuners)
            assert model.count.tolist() == [number] * 4 and cache.tolist() == [number, 0.0]
    assert "relu" in backend.tuned_operators()
    tuners[0].end()


def test_a_graph_that_draws_random_numbers_is_pytorchs(everything_known: pathlib.Path) -> None:
    def call(x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x) + torch.rand(4)

    fast = backend.compiled(call, everything_known, seconds=_SECONDS)
    x = torch.randn(4)
    torch.manual_seed(3)
    results = [fast(x)]
    assert "draws random" in str(entry.backend_report())
    results.append(fast(x))
    torch.manual_seed(3)
    assert all(torch.equal(each, call(x)) for each in results)


def test_random_numbers_drawn_meanwhile_are_the_callers(
    everything_known: pathlib.Path, tuners: list[_Tuner]
) -> None:
    model, x = nn.Sequential(nn.Linear(8, 4), nn.GELU()).eval(), torch.randn(3, 8)
    fast = backend.compiled(model, everything_known, seconds=_SECONDS)
    drawn: list[torch.Tensor] = []

    def is_built() -> bool:
        drawn.extend(torch.rand(1) for _ in range(100))
        return bool(tuners)

    torch.manual_seed(3)
    with torch.no_grad():
        fast(x)
    waiting.until(is_built)
    torch.manual_seed(3)
    assert all(torch.equal(each, torch.rand(1)) for each in drawn)
    assert "linear" in backend.tuned_operators()
    tuners[0].end()


def test_a_graph_is_built_in_the_modes_of_its_call(
    everything_known: pathlib.Path, tuners: list[_Tuner]
) -> None:
    model, x = nn.Linear(8, 4).eval(), torch.randn(3, 8)
    fast = backend.compiled(model, everything_known, seconds=_SECONDS)
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        fast(x)
        waiting.until(lambda: tuners)
        assert fast(x).dtype == torch.bfloat16
        networks.assert_close(fast(x), model(x))
    assert "linear" in backend.tuned_operators()
    tuners[0].end()


def test_copies_of_inputs() -> None:
    base = torch.arange(12.0).reshape(3, 4)
    transposed, row, weight = base.t(), base[1].expand(5, 4), nn.Parameter(base.clone())
    copies = tracing.copies_of([transposed, row, weight, 3])
    assert copies[2] is weight and copies[3] == 3
    for made, given in zip(copies[:2], (transposed, row), strict=True):
        assert torch.equal(made, given) and made.stride() == given.stride()
    copies[0].fill_(-1.0)
    assert base[1, 0] == 4.0 and copies[1][0, 0] == -1.0  # they share memory as the inputs do
    assert tracing.is_parameter(weight)


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        ({"seconds": 0}, "larger than 0"),
        ({"seconds": "60"}, "a number"),
        ({"seconds": 60, "queue": False}, "leave out 'queue'"),
    ],
)
def test_refused(chosen: dict[str, Any], message: str) -> None:
    with pytest.raises(errors.TuningError, match=message):
        settings.read(None, chosen)


_TUNES = """
import sys, time, torch, felix
from felix.network.backend import background, entry
fast = torch.compile(
    torch.relu, backend="felix", options={"seconds": 300, "known_results": sys.argv[1]}
)
fast(torch.ones(1 << 16))
behind = entry.backend._background
while behind._tuner is None:
    time.sleep(0.01)
while len(background.process_tree.members(behind._tuner._process.pid)) < 4:
    time.sleep(0.01)
with behind.call():
    print(behind._tuner._process.pid, flush=True)
    time.sleep(300)
"""


@pytest.mark.slow("starts a process that tunes")
def test_what_tunes_stands_still_and_ends_with_the_process(tmp_path: pathlib.Path) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-c", _TUNES, str(tmp_path / "known.sqlite")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as process:
        try:
            assert process.stdout is not None
            tuner = int(process.stdout.readline())
            waiting.until(lambda: process_tree.is_still(tuner))
            every = process_tree.members(tuner)
        finally:
            process.kill()
    said = [log.read_text() for log in tmp_path.rglob(child.LOG)]
    assert len(every) >= 4, said
    waiting.until(lambda: not any(psutil.pid_exists(each) for each in every))


@pytest.mark.slow("tunes in the background")
def test_tuned_in_the_background(tmp_path: pathlib.Path) -> None:
    x = torch.randn(1 << 14)
    fast = backend.compiled(torch.relu, tmp_path, seconds=20.0)
    assert torch.equal(fast(x), torch.relu(x))
    waiting.until(lambda: "tuned" in str(entry.backend_report()))
    behind = entry.backend._background
    assert behind is not None
    waiting.until(lambda: not behind.is_active)
    assert "1 tasks were tuned" in str(entry.backend_report())
    assert not store.queued(backend.known(tmp_path))
    assert torch.equal(fast(x), torch.relu(x))
