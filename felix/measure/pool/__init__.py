"""The local pool: worker processes, their stages, and the locks between them."""

from __future__ import annotations
