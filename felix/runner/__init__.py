"""Running: checks built programs against a reference and times them.

In: a built program.
Out: a checked latency, or why not.
From: `measure`, `builder`, `network`, `artifact`.
"""

from __future__ import annotations
