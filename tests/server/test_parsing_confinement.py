"""Attacks from inside the child that reads a client's workload, and what it prints."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import pytest

from felix.processes import confine, fork_server
from server import commands, errors, settings
from server.parsing import parser as parsing
from tests.support.hostile import besieged

GEMM = parsing.Workload(kind="operator", name="gemm", params={"m": 8, "n": 16, "k": 32})


def test_a_parser_that_is_taken_over_gets_nothing(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The outcome comes back as the reply: the child has nothing to write to."""
    monkeypatch.setenv("FELIX_DATABASE_URL", besieged.SECRET)
    place = besieged.Besieged.make(tmp_path)
    modules = tmp_path / "modules"
    modules.mkdir()
    code = place.code().replace("os.write(2, ", "outcomes.append(")
    (modules / "attacked_forks.py").write_text(f"""
import sys
from felix import without_torch
from felix.processes import fork_loop
from server.parsing import child
def attack(request, content):
    outcomes = []
    exec({code!r}, {{"outcomes": outcomes}})
    return {{"operators": {{"log": outcomes[0].decode()}}}}
child._reply = attack
fork_loop.serve(sys.argv[1:], lambda: None, child.serve)
""")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(modules), *sys.path]))
    server = fork_server.ForkServer("attacked_forks", 120)
    try:
        server.launch()
        place.facts["pids"] += [server.pid]
        reply = parsing.Parser(forks=lambda: server).operators()
    finally:
        server.close()
        place.close()
    assert place.harm(reply["log"]) == {}


def test_what_a_library_prints_does_not_become_the_error(tmp_path: pathlib.Path) -> None:
    """Standard output of a service is often a file, and the child may not write to files."""
    script = """
from server import errors
from server.parsing import parser
workload = parser.Workload(kind="onnx", name="n", content=b"\\x08\\x01garbage" * 50)
try:
    parser.Parser(seconds=60).parse(workload, "llvm")
except errors.InvalidRequest as error:
    open("message", "w").write(str(error))
"""
    with open(tmp_path / "log", "wb") as log:
        subprocess.run(
            [sys.executable, "-c", script],
            stdout=log,
            stderr=log,
            cwd=tmp_path,
            check=True,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        )
    message = (tmp_path / "message").read_text()
    assert "not an ONNX model" in message and "too large" not in message


def test_where_confinement_is_required_nothing_starts_without(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(confine, "available", lambda: confine.Confinement(None, False))
    chosen = settings.Settings(data_dir=tmp_path, require_confinement=True)
    for start in (
        lambda: commands.run_tuner(chosen, None, 1),
        lambda: commands.serve(chosen, with_tuner=False),
    ):
        with pytest.raises(errors.SettingsError, match=r"no Landlock.*no seccomp"):
            start()
