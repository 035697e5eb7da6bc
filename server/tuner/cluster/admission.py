"""Which nodes of a cluster may measure: asked of the database by the tuner, which alone has it."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from server.database import database
from server.store import keys, tuners

_log = logging.getLogger(__name__)


class Admission:
    """Judges nodes by the keys that they state; used by one thread.

    While the database cannot be asked, what it said last holds, and nodes that came since wait: a
    tuner that cannot reach its database loses its job anyhow.
    """

    def __init__(self, db: database.Database) -> None:
        self._db = db
        self._refusals: dict[str, str | None] = {}
        self._noted_s = float("-inf")

    def refusals(self, nodes: Sequence[Mapping[str, Any]]) -> dict[str, str | None]:
        """Why each of some nodes may not measure, by name; None if it may."""
        stated = [tuners.Node(**fields) for fields in nodes]
        try:
            with self._db.read() as tx:
                judged = tuners.judge(tx, stated)
        except sa.exc.SQLAlchemyError as error:
            _log.warning(
                "keys of nodes cannot be looked at: %s",
                error,
                extra={"action": "admission_failed"},
            )
            return self._refusals
        refusals = {each.name: each.refusal for each in judged}
        for name, refusal in refusals.items():
            if refusal is not None and refusal != self._refusals.get(name):
                _log.warning(
                    "node %s may not measure: it %s",
                    name,
                    refusal,
                    extra={"action": "node_refused"},
                )
        self._refusals = refusals
        self._note_use(judged)
        return refusals

    def _note_use(self, judged: Sequence[tuners.Judged]) -> None:
        """Record now and then that keys are used."""
        used = {each.key_id for each in judged if each.refusal is None and each.key_id is not None}
        if not used or time.monotonic() - self._noted_s < keys.USE_NOTED_S:
            return
        with contextlib.suppress(sa.exc.SQLAlchemyError), self._db.write() as tx:
            for key_id in used:
                keys.note_use(tx, key_id)
            self._noted_s = time.monotonic()
