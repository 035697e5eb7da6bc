"""Scripts of an artifact: `run.py`, run where Felix cannot be imported, and others as modules."""

from __future__ import annotations

import importlib.util
import os
import pathlib
import subprocess
import sys
from typing import Any

from tests.support import warm

_WITHOUT_FELIX = (
    "import runpy, sys; sys.modules['felix'] = None; "
    "sys.modules.update({each: None for each in sys.modules if each.startswith('felix.')}); "
    "del sys.argv[0]; runpy.run_path(sys.argv[0], run_name='__main__')"
)


def command(script: str | os.PathLike[str], *options: str) -> list[str]:
    """TVM is found where this process finds it; no folder is searched for the script's sake."""
    return [sys.executable, "-P", "-c", _WITHOUT_FELIX, os.fspath(script), *options]


def run(folder: pathlib.Path, *options: str, **others: Any) -> subprocess.CompletedProcess[str]:
    """Run that of an artifact's folder, by default in the folder `/`."""
    return warm.run(command(folder / "run.py", *options), **{"cwd": "/", **others})


def module(script: pathlib.Path) -> Any:
    """A script as a module of this process."""
    spec = importlib.util.spec_from_file_location("of_an_artifact", script)
    assert spec is not None and spec.loader is not None
    made = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made
