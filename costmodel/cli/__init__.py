"""`python -m costmodel`: `collect` and the other `commands`, their `inputs` and `outputs`."""

from __future__ import annotations
