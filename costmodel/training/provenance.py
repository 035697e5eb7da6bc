"""When, where, by what and from which commit figures were made: fields of every results file."""

from __future__ import annotations

import datetime
import importlib.metadata
from pathlib import Path
from typing import Any

from felix import target
from felix.database import records
from felix.processes import foreign
from felix.target import cpu

#: What figures depend on, beside Felix and TVM.
PACKAGES = ("torch", "numpy", "sympy", "xgboost-cpu", "xgboost")


def facts(command: str) -> dict[str, Any]:
    """Command, date (UTC), commit (None outside of a checkout), versions, the machine's CPU."""
    return {
        "command": command,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "commit": _commit(),
        "versions": _versions(),
        "machine": {"cpu": target.hardware("llvm").name, "cores": cpu.available_cores()},
    }


def _commit() -> str | None:
    """The commit, marked where files differ from it."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        return foreign.run(command, Path(__file__).parent).strip() or None
    except (OSError, RuntimeError):
        return None


def _versions() -> dict[str, str]:
    versions = records.versions()
    for package in PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions
