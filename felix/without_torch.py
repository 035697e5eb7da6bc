"""Imported before TVM in a process that needs no torch: TVM would load it, for seconds."""

from __future__ import annotations

import sys

sys.modules.setdefault("torch", None)  # type: ignore[arg-type]
