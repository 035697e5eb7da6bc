"""Connection, tables, column types and revisions.

In: a URL.
Out: transactions, tables.
From: all of `server`.
"""

from __future__ import annotations
