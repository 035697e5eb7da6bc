"""Searches: what to measure next, and which task next.

`LocalSearch` ranks by exact formulas and the cost model, `GradientSearch` descends through them as
well; `EvolutionarySearch` and `RandomSearch` are baselines behind the same protocol
(`interface.Search`). Loading this package does not load torch; the searches themselves do.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

_LAZY = {
    "Allocator": "felix.search.allocate",
    "EvolutionarySearch": "felix.search.strategies.evolutionary",
    "EvolutionOptions": "felix.search.strategies.evolutionary",
    "GradientOptions": "felix.search.strategies.gradient",
    "GradientSearch": "felix.search.strategies.gradient",
    "LocalOptions": "felix.search.strategies.local",
    "LocalSearch": "felix.search.strategies.local",
    "RandomSearch": "felix.search.strategies.random",
    "Search": "felix.search.interface",
    "Suggestion": "felix.search.interface",
}

if TYPE_CHECKING:
    from felix.search.allocate import Allocator
    from felix.search.interface import Search, Suggestion
    from felix.search.strategies.evolutionary import EvolutionarySearch, EvolutionOptions
    from felix.search.strategies.gradient import GradientOptions, GradientSearch
    from felix.search.strategies.local import LocalOptions, LocalSearch
    from felix.search.strategies.random import RandomSearch

__all__ = [
    "Allocator",
    "EvolutionOptions",
    "EvolutionarySearch",
    "GradientOptions",
    "GradientSearch",
    "LocalOptions",
    "LocalSearch",
    "RandomSearch",
    "Search",
    "Suggestion",
]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'felix.search' has no attribute {name!r}")
    return getattr(importlib.import_module(_LAZY[name]), name)
