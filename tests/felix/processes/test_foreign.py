"""Programs that are not ours: what they write, why they fail, when they end."""

from __future__ import annotations

import pathlib
import subprocess
import sys

import psutil
import pytest

from felix.processes import foreign


def test_a_program_that_ran_says_what_it_wrote(tmp_path: pathlib.Path) -> None:
    assert foreign.run(["pwd"], tmp_path) == f"{tmp_path}\n"
    with pytest.raises(RuntimeError, match=r"sh failed: no$"):
        foreign.run(["sh", "-c", "echo no >&2; exit 3"])
    with pytest.raises(OSError):
        foreign.run(["/no/such/program"])


def test_a_program_that_is_tied_ends_with_its_parent() -> None:
    script = """
import subprocess
from felix.processes import foreign
null = subprocess.DEVNULL
for is_tied in (True, False):
    print(foreign.start(["sleep", "60"], null, null, is_tied=is_tied).pid)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    tied, free = map(int, done.stdout.split())
    try:
        psutil.wait_procs([psutil.Process(tied)] if psutil.pid_exists(tied) else [], timeout=10)
        assert not psutil.pid_exists(tied) or psutil.Process(tied).status() == "zombie"
        assert psutil.pid_exists(free)
    finally:
        psutil.Process(free).kill()
