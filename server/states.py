"""States of a job and the moves between them: one frozen table.

    queued -> running -> succeeded | failed
      |         |  ^
      |      pausing -> paused -> queued
      |         |
      +---- stopping (ends early, with its artifact) -> succeeded
      +---- cancelling -> cancelled

A tuner has a lease in the `LEASED` states, and may in `stopping`: a job that is to end early
while nobody works on it waits in `stopping` for a tuner to make its artifact. `failed` and
`cancelled` jobs go on after a retry, with all they have measured; `succeeded` is final.

The CHECK constraints of `server.database.models` say the same to the database: a job's state is
one of these, and each event that moves a job has a legal pair.
"""

from __future__ import annotations

import enum
import types
from collections.abc import Mapping

from server import errors


class State(enum.StrEnum):
    """Where a job is in its life."""

    #: Waits for a tuner.
    QUEUED = "queued"
    #: A tuner works on it.
    RUNNING = "running"
    #: A tuner works on it and is about to release it.
    PAUSING = "pausing"
    #: Waits until a user resumes it.
    PAUSED = "paused"
    #: To end early, with the best schedules so far.
    STOPPING = "stopping"
    #: A tuner works on it and is about to drop it.
    CANCELLING = "cancelling"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


_S = State

#: From each state, where a job can go.
MOVES: Mapping[State, frozenset[State]] = types.MappingProxyType(
    {
        _S.QUEUED: frozenset({_S.RUNNING, _S.PAUSED, _S.STOPPING, _S.CANCELLED}),
        _S.RUNNING: frozenset(
            {_S.QUEUED, _S.PAUSING, _S.STOPPING, _S.CANCELLING, _S.SUCCEEDED, _S.FAILED}
        ),
        _S.PAUSING: frozenset(
            {_S.PAUSED, _S.RUNNING, _S.STOPPING, _S.CANCELLING, _S.SUCCEEDED, _S.FAILED}
        ),
        _S.PAUSED: frozenset({_S.QUEUED, _S.STOPPING, _S.CANCELLED}),
        _S.STOPPING: frozenset({_S.SUCCEEDED, _S.FAILED, _S.CANCELLING, _S.CANCELLED}),
        _S.CANCELLING: frozenset({_S.CANCELLED}),
        _S.SUCCEEDED: frozenset(),
        _S.FAILED: frozenset({_S.QUEUED}),
        _S.CANCELLED: frozenset({_S.QUEUED}),
    }
)

#: A tuner has a lease.
LEASED = frozenset({_S.RUNNING, _S.PAUSING, _S.CANCELLING})
#: A tuner has a lease, or may take one.
MAY_BE_LEASED = LEASED | {_S.STOPPING}
#: What a tuner may claim when no other has the lease.
CLAIMABLE = frozenset({_S.QUEUED, _S.STOPPING})
#: Nothing happens to the job by itself any more.
ENDED = frozenset({_S.SUCCEEDED, _S.FAILED, _S.CANCELLED})
#: Counts against a key's quota of running jobs.
ACTIVE = frozenset(set(_S) - ENDED - {_S.PAUSED})


class Instruction(enum.StrEnum):
    """What a tuner has to do, as it learns when it renews its lease."""

    CONTINUE = "continue"
    PAUSE = "pause"
    STOP = "stop"
    CANCEL = "cancel"
    #: Another key's job waits and it is its turn.
    YIELD = "yield"
    #: The job is no longer this tuner's.
    LEASE_LOST = "lease_lost"


#: What the holder of a job in that state has to do.
INSTRUCTIONS: Mapping[State, Instruction] = types.MappingProxyType(
    {
        _S.RUNNING: Instruction.CONTINUE,
        _S.PAUSING: Instruction.PAUSE,
        _S.STOPPING: Instruction.STOP,
        _S.CANCELLING: Instruction.CANCEL,
    }
)


def check(before: State, after: State) -> None:
    """Refuse a move that the table does not have.

    Raises:
        IllegalMove: the message names both states.
    """
    if after not in MOVES[before]:
        raise errors.IllegalMove(f"a job that is {before} cannot become {after}")


def pairs() -> list[str]:
    """All legal moves as `before>after`, for the CHECK constraint."""
    return sorted(f"{before}>{after}" for before, to in MOVES.items() for after in to)
