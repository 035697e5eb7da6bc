"""The walks of the architecture page that need no service are the calls that are made."""

from __future__ import annotations

import contextlib
import pathlib
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any

import pytest
import torch

import felix
from felix import workloads
from felix.measure import fork_server_main, local_workers, worker_main
from tests.support import walks

TITLE = walks.FIRST_TITLE


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
    hops = walks.walk(TITLE)
    with walks.Calls(hops) as calls:
        result = felix.tune(workloads.gemm(16, 16, 16, target="llvm -num-cores 2"), trials=2)
    assert result.best.latency_us > 0
    walks.check(TITLE, calls, hops)


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
        (["server/store/a.py:a", "  server/api/b.py:b (thread)"], "calls up"),
        (
            ["felix/task.py:Task.key", "  felix/task.py:Task.flops (first walk)"],
            "not in the first",
        ),
    ],
)
def test_a_wrong_walk_is_found(
    lines: list[str], what: str, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    hops = _walk(lines, monkeypatch, tmp_path)
    calls = walks.Calls(hops)
    calls.edges |= {(hop.place, None) for hop in hops if hop.name != "missing"}
    _walk(["felix/task.py:Task.key"], monkeypatch, tmp_path)  # the first walk is another
    with pytest.raises(AssertionError, match=what):
        walks.check(TITLE, calls, hops)


@pytest.mark.parametrize(
    ("lines", "is_right"),
    [
        (["felix/cli/a.py:a", "  felix/tuning/b.py:b", "    felix/task.py:c"], True),
        (["felix/cli/a.py:a", "  felix/task.py:c"], False),
        (["felix/cli/a.py:a", "  felix/task.py:c (thread)"], False),
    ],
)
def test_a_hop_that_is_left_out_is_found(
    lines: list[str], is_right: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    hops = _walk(lines, monkeypatch, tmp_path)
    a, b, c = (
        _calling(*place) for place in (("cli/a.py", "a"), ("tuning/b.py", "b"), ("task.py", "c"))
    )
    with walks.Calls(hops) as calls:
        a(b, c)
    with contextlib.nullcontext() if is_right else pytest.raises(AssertionError, match="not call"):
        walks.check(TITLE, calls, hops)


def _walk(
    lines: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> list[walks.Hop]:
    page = tmp_path / "page.md"
    page.write_text("\n".join([f"**{TITLE}**", "", "```", *lines, "```", ""]))
    monkeypatch.setattr(walks, "PAGE", page)
    return walks.walk(TITLE)


def _calling(path: str, name: str) -> Callable[..., None]:
    """A function of a file of felix that calls the first of its arguments with the others."""
    made: dict[str, Any] = {}
    code = f"def {name}(*others):\n    if others: others[0](*others[1:])"
    exec(compile(code, walks.ROOT / "felix" / path, "exec"), made)
    function: Callable[..., None] = made[name]
    return function
