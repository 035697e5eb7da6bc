"""The verbs of the store, one noun a module; each takes the transaction it works in.

In: a transaction, values.
Out: rows.
From: `api`, `dashboard`, `web`, `tuner`.

    with database.write() as tx:
        job = control.pause(tx, job_id)

Rows come back as frozen copies (`rows`). A verb raises the errors of `server.errors`.
"""

from __future__ import annotations
