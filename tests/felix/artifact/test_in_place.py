"""The bundle of a program that changes an argument in place, as its tuning ships it."""

from __future__ import annotations

import json
import pathlib
import subprocess

import pytest

import felix
from felix.task import Task
from tests.support import in_place, run_py


@pytest.mark.parametrize("name", in_place.PROGRAMS)
def test_run_py_agrees_with_both_references(name: str, tmp_path: pathlib.Path) -> None:
    task = Task.from_prim_func(in_place.program(name), "llvm -num-cores 1")
    felix.tune(task, trials=2).export(tmp_path)
    command = run_py.command(tmp_path / "run.py", "--json", "--repeats", "2")
    done = subprocess.run(command, capture_output=True, text=True, cwd="/", check=False)
    assert done.returncode == 0, done.stderr
    checked = json.loads(done.stdout)["checked_against"]
    assert set(checked) == {"the unscheduled program", "numpy"}
