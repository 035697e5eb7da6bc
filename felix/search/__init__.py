"""Searches: what to measure next, and which task next.

`GradientSearch` descends through the formulas and the cost model; `EvolutionarySearch` and
`RandomSearch` are baselines behind the same protocol (`types.Search`). Loading this package
does not load torch; the searches themselves do.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

_LAZY = {
    "Allocator": "felix.search.allocate",
    "EvolutionarySearch": "felix.search.evolutionary",
    "EvolutionOptions": "felix.search.evolutionary",
    "GradientOptions": "felix.search.gradient",
    "GradientSearch": "felix.search.gradient",
    "RandomSearch": "felix.search.random_search",
    "Search": "felix.search.types",
    "Suggestion": "felix.search.types",
}

if TYPE_CHECKING:
    from felix.search.allocate import Allocator
    from felix.search.evolutionary import EvolutionarySearch, EvolutionOptions
    from felix.search.gradient import GradientOptions, GradientSearch
    from felix.search.random_search import RandomSearch
    from felix.search.types import Search, Suggestion

__all__ = ["Allocator", "EvolutionOptions", "EvolutionarySearch", "GradientOptions",
           "GradientSearch", "RandomSearch", "Search", "Suggestion"]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'felix.search' has no attribute {name!r}")
    return getattr(importlib.import_module(_LAZY[name]), name)
