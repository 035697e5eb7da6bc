"""The search: what to measure next, and which task next.

In: sketches, a cost model, latencies.
Out: candidates; which task is next.
From: `tuning`, `metaschedule`.

`GradientSearch` ranks by exact formulas and the cost model, and descends through them; all
searches have one protocol (`interface.Search`). Loading this package does not load torch; the
search itself does.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

_LAZY = {
    "Allocator": "felix.search.allocate",
    "GradientOptions": "felix.search.gradient",
    "GradientSearch": "felix.search.gradient",
    "Search": "felix.search.interface",
    "Candidate": "felix.search.interface",
}

if TYPE_CHECKING:
    from felix.search.allocate import Allocator
    from felix.search.gradient import GradientOptions, GradientSearch
    from felix.search.interface import Candidate, Search

__all__ = ["Allocator", "Candidate", "GradientOptions", "GradientSearch", "Search"]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'felix.search' has no attribute {name!r}")
    return getattr(importlib.import_module(_LAZY[name]), name)
