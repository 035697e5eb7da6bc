"""The search: what to measure next, and which task next.

In: sketches, a cost model, latencies.
Out: candidates; which task is next.
From: `tuning`, `metaschedule`, `costmodel`.

`GradientSearch` ranks by exact formulas and the cost model, and descends through them; all
searches have one protocol (`interface.Search`). Loading this package does not load torch; the
search itself does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from felix.search.gradient import GradientOptions, GradientSearch

__all__ = ["GradientOptions", "GradientSearch"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'felix.search' has no attribute {name!r}")
    from felix.search import gradient

    return getattr(gradient, name)
