"""Felix: gradient-descent schedule tuning for tensor programs on stock Apache TVM.

`import felix` is light: torch and tvm load when a name that needs them is first used.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

from felix import errors
from felix.errors import FelixError, InvalidSchedule
from felix.version import __version__ as __version__

#: sympy reads it when it is imported. Formulas of a task have some ten thousand subexpressions, of
#: which sympy's default of 1000 forgets most before they come again.
os.environ.setdefault("SYMPY_CACHE_SIZE", "20000")

#: Public name -> the module that it is.
_MODULES = {
    "events": "felix.events",
    "frontend": "felix.frontend",
    "metaschedule": "felix.metaschedule",
    "records": "felix.database.records",
    "workloads": "felix.workloads",
}
#: Public name -> module that defines it.
_LAZY = {
    "NetworkResult": "felix.tuning.results",
    "Sketch": "felix.space.sketch",
    "Task": "felix.task",
    "TuneOptions": "felix.tuning.options",
    "TuneResult": "felix.tuning.results",
    "backend_report": "felix.network.backend.entry",
    "compile": "felix.tuning.tune",
    "extract_tasks": "felix.frontend",
    "optimize": "felix.network.optimize",
    "sketches": "felix.space.sketch",
    "trace_sketches": "felix.space.sketch",
    "tune": "felix.tuning.tune",
}

if TYPE_CHECKING:
    from felix import events, frontend, metaschedule, workloads
    from felix.database import records
    from felix.frontend import extract_tasks
    from felix.network.backend.entry import backend_report
    from felix.network.optimize import optimize
    from felix.space.sketch import Sketch, sketches, trace_sketches
    from felix.task import Task
    from felix.tuning.options import TuneOptions
    from felix.tuning.results import NetworkResult, TuneResult
    from felix.tuning.tune import compile, tune

__all__ = ["FelixError", "InvalidSchedule", "NetworkResult", "Sketch", "Task", "TuneOptions",
           "TuneResult", "backend_report", "compile", "errors", "events", "extract_tasks",
           "frontend", "metaschedule", "optimize", "records", "sketches", "trace_sketches", "tune",
           "workloads"]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(_MODULES[name])
    if name not in _LAZY:
        raise AttributeError(f"module 'felix' has no attribute {name!r}")
    return getattr(importlib.import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))
