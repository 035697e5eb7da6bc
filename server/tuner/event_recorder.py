"""The events of a run (`felix.events`), written to the store.

Trials are written by `server.tuner.session`, before the search learns them.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from felix import events as engine
from server.store import events, progress
from server.tuner import claimed_job


class EventRecorder:
    """Called with every event of a run, in the tuner's thread.

    Args:
        claimed: the job.
        task_keys: of the job's tasks, in order.
        about: further fields of the event `started`: worker, device.
    """

    def __init__(
        self, claimed: claimed_job.ClaimedJob, task_keys: Sequence[str], about: Mapping[str, Any]
    ) -> None:
        self._claimed, self._task_keys, self._about = claimed, task_keys, about
        #: whether the run has begun: until then it must not be stopped
        self.has_begun = False

    def __call__(self, event: engine.Event) -> None:
        """Write one event.

        Raises:
            LeaseLost
        """
        claimed, fence = self._claimed, self._claimed.fence
        match event:
            case engine.Started():
                payload = {**plain(event), **self._about}
                claimed.write(lambda tx: progress.started(tx, fence, self._task_keys, payload))
                self.has_begun = True
            case engine.Opened(task_index=number):
                counts = (event.n_sketches, event.extract_s)
                claimed.write(lambda tx: progress.opened(tx, fence, number, *counts))
            case engine.Baseline(task_index=number):
                measured = (event.latency_us, event.message)
                claimed.write(lambda tx: progress.baseline(tx, fence, number, *measured))
            case engine.RoundStarted(task_index=number):
                values = plain(event)
                steps = values.pop("steps")
                for name in ("task", "task_index"):
                    values.pop(name)
                round_number = values.pop("round")
                claimed.write(
                    lambda tx: progress.round_started(
                        tx, fence, number, round_number, values, steps
                    )
                )
            case engine.Trained():
                trained = plain(event)
                claimed.write(lambda tx: progress.trained(tx, fence, trained))
            case engine.Warned(message=message):
                self.warn(message)
            case engine.Trial() | engine.Finished():
                pass

    def warn(self, message: str) -> None:
        """Write something a person should know."""
        payload = {"message": message}
        fence = self._claimed.fence
        self._claimed.write(
            lambda tx: progress.append_event(tx, fence, events.Type.WARNING, payload)
        )


def plain(event: engine.Event) -> dict[str, Any]:
    """The event as values that JSON has: infinite and undefined numbers become None."""
    values = _finite(dataclasses.asdict(event))
    assert isinstance(values, dict)
    return values


def _finite(value: Any) -> Any:
    match value:
        case float():
            return value if math.isfinite(value) else None
        case dict():
            return {key: _finite(each) for key, each in value.items()}
        case list() | tuple():
            return [_finite(each) for each in value]
    return value
