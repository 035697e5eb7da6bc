"""Attacks from inside the child that tries a program from outside."""

from __future__ import annotations

import pathlib
import subprocess
import sys
from typing import Any

import pytest

from felix import workloads
from felix.tir import sandbox
from tests.support.hostile import besieged


@pytest.mark.fresh_processes
def test_a_sandbox_that_is_taken_over_gets_nothing(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FELIX_DATABASE_URL", besieged.SECRET)
    place = besieged.Besieged.make(tmp_path)
    attack = f'{place.code()}\nsandbox.sys.stdout.write(\'{{"error": "done"}}\'); os._exit(0)'
    logs = []
    start = subprocess.run

    def run(command: list[str], **options: Any) -> Any:
        """As the sandbox starts its child, which runs the attack in place of reading."""
        code = command[-1].replace(
            "sandbox.child_main()",
            f"sandbox.load = lambda text: exec({attack!r}, globals()); sandbox.child_main()",
        )
        assert code != command[-1]
        options["stderr"] = subprocess.PIPE
        options.pop("capture_output", None) and options.update(stdout=subprocess.PIPE)
        done = start([sys.executable, "-c", code], **options)
        logs.append(done.stderr.decode())
        return done

    monkeypatch.setattr(subprocess, "run", run)
    with pytest.raises(Exception):  # noqa: B017 (the verdict does not matter)
        task = workloads.gemm(4, 4, 4, target="llvm")
        sandbox.try_in_child(task.to_json(), "{}")
    place.close()
    assert place.harm(logs[0]) == {}
