"""What the engine tells while it works (`felix.events`), written to the store.

Trials are not written here but by the journal, before the search learns them.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from felix import events as engine
from server.store import events, progress
from server.tuner import claimed_job as desks


class Reporter:
    """Called with every event of a run, in the tuner's thread.

    Args:
        desk: the job.
        task_keys: of the job's tasks, in order.
        about: what every start tells besides: worker, device.
    """

    def __init__(
        self, desk: desks.Desk, task_keys: Sequence[str], about: Mapping[str, Any]
    ) -> None:
        self._desk, self._task_keys, self._about = desk, task_keys, about
        #: whether the run has begun: until then it must not be stopped
        self.has_begun = False

    def __call__(self, event: engine.Event) -> None:
        """Write one event.

        Raises:
            LeaseLost
        """
        desk, fence = self._desk, self._desk.fence
        match event:
            case engine.Started():
                payload = {**plain(event), **self._about}
                desk.write(lambda tx: progress.started(tx, fence, self._task_keys, payload))
                self.has_begun = True
            case engine.Opened(task_index=number):
                counts = (event.n_sketches, event.extract_s)
                desk.write(lambda tx: progress.opened(tx, fence, number, *counts))
            case engine.Baseline(task_index=number):
                told = (event.latency_us, event.message)
                desk.write(lambda tx: progress.baseline(tx, fence, number, *told))
            case engine.RoundStarted(task_index=number):
                values = plain(event)
                steps = values.pop("steps")
                for name in ("task", "task_index"):
                    values.pop(name)
                round_number = values.pop("round")
                desk.write(
                    lambda tx: progress.round_started(
                        tx, fence, number, round_number, values, steps
                    )
                )
            case engine.Trained():
                trained = plain(event)
                desk.write(lambda tx: progress.trained(tx, fence, trained))
            case engine.Warned(message=message):
                self.warn(message)
            case engine.Trial() | engine.Finished():
                pass

    def warn(self, message: str) -> None:
        """Write something a person should know."""
        payload = {"message": message}
        fence = self._desk.fence
        self._desk.write(lambda tx: progress.tell(tx, fence, events.Type.WARNING, payload))


def plain(event: engine.Event) -> dict[str, Any]:
    """The event as values that JSON has: infinite and undefined numbers become None."""
    found = _finite(dataclasses.asdict(event))
    assert isinstance(found, dict)
    return found


def _finite(value: Any) -> Any:
    match value:
        case float():
            return value if math.isfinite(value) else None
        case dict():
            return {key: _finite(each) for key, each in value.items()}
        case list() | tuple():
            return [_finite(each) for each in value]
    return value
