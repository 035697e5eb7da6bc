"""How keys share the tuners: whose turn it is, and what each had of them lately."""

from __future__ import annotations
