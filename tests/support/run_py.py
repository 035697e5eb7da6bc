"""The `run.py` of an artifact, run where Felix cannot be imported."""

from __future__ import annotations

import os
import sys

_WITHOUT_FELIX = (
    "import runpy, sys; sys.modules['felix'] = None; del sys.argv[0]; "
    "runpy.run_path(sys.argv[0], run_name='__main__')"
)


def command(script: str | os.PathLike[str], *options: str) -> list[str]:
    """TVM is found where this process finds it; no folder is searched for the script's sake."""
    return [sys.executable, "-P", "-c", _WITHOUT_FELIX, os.fspath(script), *options]
