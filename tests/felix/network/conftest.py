"""Compiled code of one test is not another's, and random numbers are the same in every run."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator

import pytest
import torch

from felix.database import store
from felix.database.outcome import KnownResult
from felix.task import Task
from tests.support import backend


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """Nothing is compiled or drawn when a test begins."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()


@pytest.fixture
def everything_known(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> pathlib.Path:
    """The folder of known results of which every task has one: its unscheduled program."""

    def find(self: store.Store, task: Task) -> KnownResult:
        return backend.outcome(task)

    monkeypatch.setattr(store.Store, "find", find)
    return tmp_path
