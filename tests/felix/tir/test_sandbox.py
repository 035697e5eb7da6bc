"""Attacks from inside the child that tries a program from outside."""

from __future__ import annotations

import os
import pathlib

import pytest

from felix import errors, workloads
from felix.processes import child
from felix.tir import sandbox
from tests.support.hostile import besieged


@pytest.mark.fresh_processes
def test_a_sandbox_that_is_taken_over_gets_nothing(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FELIX_DATABASE_URL", besieged.SECRET)
    place = besieged.Besieged.make(tmp_path)
    attack = f"{place.code()}\nquestion.answer('done'); os._exit(0)"
    (tmp_path / "attacked_child.py").write_text(
        "import os, sys\n"
        "from felix import without_torch\n"
        "from felix.processes import child\n"
        "from felix.tir import sandbox, sandbox_main\n"
        "made, question = child.Question, None\n"
        "def noted(folder):\n"
        "    global question\n"
        "    question = made(folder)\n"
        "    return question\n"
        "child.Question = noted\n"
        f"sandbox.load = lambda text: exec({attack!r}, globals())\n"
        "sandbox_main.main(sys.argv[1])\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(sandbox, "_MODULE", "attacked_child")
    logs = []
    read = child.end_of

    def noted(path: pathlib.Path, n_bytes: int) -> str:
        logs.append((path.parent / "log").read_text())
        return read(path, n_bytes)

    monkeypatch.setattr(child, "end_of", noted)
    task = workloads.gemm(4, 4, 4, target="llvm")
    with pytest.raises(errors.WorkloadError, match="done"):
        sandbox.try_in_child(task.to_json(), "{}")
    place.close()
    assert place.harm(logs[0]) == {}
