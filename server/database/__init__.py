"""Connection, tables, column types and revisions.

In: a URL.
Out: transactions, tables.
From: `store`, `tuner`, `web`, `commands`.
"""

from __future__ import annotations
