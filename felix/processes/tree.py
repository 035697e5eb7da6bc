"""Removing what a process that may have been hostile has left."""

from __future__ import annotations

import pathlib
import shutil
import subprocess


def remove(path: pathlib.Path) -> None:
    """Remove a file or a folder with all that is in it; nothing if it is not there."""
    if not path.is_dir() or path.is_symlink():
        path.unlink(missing_ok=True)
        return
    try:
        shutil.rmtree(path, ignore_errors=True)
    except RecursionError:  # folders nested deeper than Python follows
        subprocess.run(["rm", "-rf", "--", str(path)], check=False)
