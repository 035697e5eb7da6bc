"""Schema revisions of the service's database (Alembic); `felix db upgrade` applies them.

A revision declares the tables as they were when it was written and imports nothing of `server`,
so that it stays what it was. A test proves that all revisions together make
`server.database.models`.
"""

from __future__ import annotations
