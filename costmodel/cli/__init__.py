"""`python -m costmodel`: `collect` and the other `commands`, their `inputs` and `outputs`.

In: a command line.
Out: calls.
From: users.
"""

from __future__ import annotations
