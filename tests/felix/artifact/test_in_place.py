"""The bundle of a program that changes an argument in place, as its tuning ships it."""

from __future__ import annotations

import json
import pathlib

import pytest

import felix
from felix.task import Task
from tests.support import in_place, run_py


@pytest.mark.parametrize("name", in_place.PROGRAMS)
def test_run_py_agrees_with_both_references(name: str, tmp_path: pathlib.Path) -> None:
    task = Task.from_prim_func(in_place.program(name), "llvm -num-cores 1")
    felix.tune(task, trials=2).export(tmp_path)
    done = run_py.run(tmp_path, "--json", "--repeats", "2")
    assert done.returncode == 0, done.stderr
    checked = json.loads(done.stdout)["checked_against"]
    assert set(checked) == {"the unscheduled program", "numpy"}
