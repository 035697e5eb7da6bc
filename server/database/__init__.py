"""Connection, tables, column types and revisions."""

from __future__ import annotations
