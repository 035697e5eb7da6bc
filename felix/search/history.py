"""What a search has proposed and what was measured of it: `History`.

Keys carry the sketch index, live for the whole run, and are never mistaken for absent when the
set is empty. A failed candidate is remembered as measured, without a latency.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from felix import errors
from felix.search import interface

#: Version of the stored form.
FORMAT = 1


class History:
    """Measured and pending candidates of one task."""

    def __init__(self) -> None:
        self.measured: dict[interface.Key, float | None] = {}
        self.pending: set[interface.Key] = set()

    def __contains__(self, key: interface.Key) -> bool:
        return key in self.measured or key in self.pending

    def propose(self, candidates: Sequence[interface.Candidate]) -> None:
        """These are being measured now."""
        self.pending.update(s.key for s in candidates)

    def record(self, results: Sequence[tuple[interface.Candidate, float | None]]) -> None:
        """These were measured; of several measurements of one candidate the best counts."""
        for candidate, latency_us in results:
            key = candidate.key
            self.pending.discard(key)
            known = self.measured.get(key)
            if known is not None and (latency_us is None or known <= latency_us):
                continue
            self.measured[key] = latency_us

    def best(self, n: int, sketch_index: int | None = None) -> list[interface.Key]:
        """The n fastest measured candidates (of one sketch), fastest first."""
        ranked = sorted(
            (latency_us, key)
            for key, latency_us in self.measured.items()
            if latency_us is not None and sketch_index in (None, key[0])
        )
        return [key for _, key in ranked[:n]]

    def state_dict(self) -> dict[str, Any]:
        """JSON-able form."""
        return {
            "format": FORMAT,
            "measured": [[s, list(d), latency] for (s, d), latency in self.measured.items()],
            "pending": [[s, list(d)] for s, d in sorted(self.pending)],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Replace everything by a stored state.

        Raises:
            RecordError: the state is malformed or of another version.
        """
        try:
            if state["format"] != FORMAT:
                raise ValueError(f"format {state['format']}, not {FORMAT}")
            measured = {_key(s, d): _latency(latency) for s, d, latency in state["measured"]}
            pending = {_key(s, d) for s, d in state["pending"]}
        except (KeyError, TypeError, ValueError) as error:
            raise errors.RecordError(f"cannot read the state of a search: {error}") from error
        self.measured, self.pending = measured, pending


def _key(sketch_index: Any, decisions: Any) -> interface.Key:
    return int(sketch_index), tuple(int(value) for value in decisions)


def _latency(value: Any) -> float | None:
    if value is None:
        return None
    latency_us = float(value)
    if not (math.isfinite(latency_us) and latency_us > 0):
        raise ValueError(f"a latency of {value}")
    return latency_us
