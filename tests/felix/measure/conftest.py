"""A local pool with real processes, and the task it has."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from felix.measure import local
from felix.task import Task
from tests.support import pool_programs as programs


@pytest.fixture
def ends() -> Iterator[contextlib.ExitStack]:
    """What is put into it is done after the test."""
    with contextlib.ExitStack() as stack:
        yield stack


@pytest.fixture(scope="module")
def task() -> Task:
    return Task.from_prim_func(programs.gemm, "llvm -num-cores 2", name="gemm")


@pytest.fixture(scope="module")
def pool(task: Task) -> Iterator[local.LocalPool]:
    with local.LocalPool(task, programs.OPTIONS) as opened:
        yield opened
