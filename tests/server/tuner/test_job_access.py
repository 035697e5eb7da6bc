"""The verbs on a job: declared once, done by the store, asked for over a pipe."""

from __future__ import annotations

import multiprocessing
import types
from typing import Any

import pytest

from server.store import progress
from server.tuner import claimed_job, job_access
from server.tuner.process import engine_main, engine_process, messages
from tests.support import service_fakes

#: What is no verb of the store: each side does it itself.
OWN = {"do", "should_stop", "should_yield", "begin_step"}


def test_every_verb_is_declared_and_done() -> None:
    declared = {name for name in vars(job_access.JobAccess) if not name.startswith("_")}
    assert declared - OWN == claimed_job.VERBS


@pytest.mark.parametrize("verb", ["do", "write", "should_stop", "__class__", "drop"])
def test_nothing_else_can_be_asked_for(verb: str) -> None:
    claimed: Any = types.SimpleNamespace()
    with pytest.raises(messages.EngineFailure, match=f"asked for '{verb}'"):
        engine_process.answer(claimed, messages.Message(verb, [], b""))


@pytest.mark.parametrize(
    ("verb", "arguments"),
    [
        ("add_trial", [0, service_fakes.line(3)]),
        ("save", [progress.Checkpoint(3, {"a": [1]}, b"tensors"), 2.0, {"search_s": 1.0}]),
        ("save", [progress.Checkpoint(3, {}, None), 2.0, {}]),
        ("opened", [0, 2, 0.5, {"0": [["tile", 4]]}]),
        ("chosen", [0, None, 5.0, True]),
    ],
)
def test_arguments_cross_the_pipe_as_they_are(verb: str, arguments: list[Any]) -> None:
    given: list[Any] = []
    claimed: Any = types.SimpleNamespace(**{verb: lambda *args: given.extend(args)})
    ours, theirs = multiprocessing.Pipe()
    with ours, theirs:
        ours.send(("value", None))
        job: Any = types.SimpleNamespace()
        engine_main.RemoteJob(theirs, job).do(verb, *arguments)
        engine_process.answer(claimed, messages.receive(ours))
    assert given == arguments
