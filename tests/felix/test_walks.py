"""The walks of the architecture page that need no service are the calls that are made."""

from __future__ import annotations

import contextlib
import pathlib
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Any

import pytest
import torch

import felix
from felix import workloads
from felix.measure import fork_server_main, local_workers, worker_main
from tests.support import walks


@pytest.fixture
def workers_here(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Builders and runners are threads, which nothing confines."""

    def serve(conn: Connection, settings: dict[str, Any]) -> None:
        worker_main.serve(conn, fork_server_main._verbs(conn, settings))

    made = walks.Workers(serve)
    monkeypatch.setattr(local_workers.fork_server, "ForkServer", lambda *_: made)
    with contextlib.closing(made):
        yield


def test_from_tune_to_a_latency(workers_here: None) -> None:
    title = "From `felix.tune` to a latency"
    hops = walks.walk(title)
    with walks.Calls(hops) as calls:
        result = felix.tune(workloads.gemm(16, 16, 16, target="llvm -num-cores 2"), trials=2)
    assert result.best.latency_us > 0
    walks.check(title, calls, hops)


def test_from_a_model_to_a_callable(workers_here: None, tmp_path: pathlib.Path) -> None:
    title = "From a model to a callable"
    hops = walks.walk(title)
    model = torch.nn.Sequential(torch.nn.Linear(16, 8), torch.nn.ReLU())
    x = torch.randn(4, 16)
    with walks.Calls(hops) as calls:
        fast = felix.optimize(model, (x,), trials=2, known_results=tmp_path / "known.db")
        result = fast(x)
    torch.testing.assert_close(result, model(x), rtol=1e-4, atol=1e-5)
    walks.check(title, calls, hops)


@pytest.mark.parametrize(
    ("lines", "what"),
    [
        (["felix/task.py:Task.key", "  felix/task.py:missing"], "missing"),
        (["felix/task.py:Task.key", "  felix/task.py:Task.flops"], "flops"),
        (["felix/task.py:Task.key", "  felix/tuning/tune.py:tune (thread)"], "calls up"),
    ],
)
def test_a_wrong_walk_is_found(
    lines: list[str], what: str, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    page, title = tmp_path / "page.md", "From `felix.tune` to a latency"
    page.write_text("\n".join([f"**{title}**", "", "```", *lines, "```", ""]))
    monkeypatch.setattr(walks, "PAGE", page)
    hops = walks.walk(title)
    calls = walks.Calls(hops)
    calls.edges |= {("felix/task.py:Task.key", None), ("felix/task.py:Task.flops", None)}
    calls.edges |= {("felix/tuning/tune.py:tune", None)}
    with pytest.raises(AssertionError, match=what):
        walks.check(title, calls, hops)
