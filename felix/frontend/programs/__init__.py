"""The programs of an imported model: operators lowered, grouped, and fused."""

from __future__ import annotations
