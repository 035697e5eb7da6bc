"""The events of a run (`felix.events`), written to the store.

Trials are written by `server.tuner.session`, before the search learns them.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from felix import events
from server.tuner import engine

#: Names of tasks are cut after so many characters in messages.
MAX_NAME = 100


class EventRecorder:
    """Called with every event of a run, in the tuner's thread.

    Args:
        claimed: the job.
        task_keys: of the job's tasks, in order.
        about: further fields of the event `started`: worker, device.
    """

    def __init__(
        self, claimed: engine.JobAccess, task_keys: Sequence[str], about: Mapping[str, Any]
    ) -> None:
        self._claimed, self._task_keys, self._about = claimed, task_keys, about
        #: whether the run has begun: until then it must not be stopped
        self.has_begun = False

    def __call__(self, event: events.Event) -> None:
        """Write one event.

        Raises:
            LeaseLost
        """
        claimed = self._claimed
        match event:
            case events.Started():
                claimed.started(self._task_keys, {**plain(event), **self._about})
                self.has_begun = True
            case events.Opening(task=name):
                claimed.begin_step(f"building the formulas of task {name[:MAX_NAME]!r}")
            case events.Opened(task_index=number):
                labels = {str(index): groups for index, groups in event.decisions.items()}
                claimed.opened(number, event.n_sketches, event.extract_s, labels)
                claimed.begin_step("a step of tuning")
            case events.Baseline(task_index=number):
                claimed.baseline(number, event.latency_us, event.message)
            case events.Chosen(task_index=number):
                choice = (event.tuned_us, event.unscheduled_us, event.ships_unscheduled)
                claimed.chosen(number, *choice)
            case events.RoundStarted(task_index=number):
                values = plain(event)
                steps = values.pop("steps")
                for name in ("task", "task_index"):
                    values.pop(name)
                claimed.round_started(number, values.pop("round"), values, steps)
            case events.Trained():
                claimed.trained(plain(event))
            case events.Skipped(task=name, reason=reason):
                claimed.warn(f"task {name[:MAX_NAME]!r} is skipped: {reason}")
                claimed.begin_step("a step of tuning")
            case events.Warned(message=message):
                claimed.warn(message)
            case events.Remeasuring():
                claimed.begin_step("measuring the fastest candidates again")
            case events.Trial() | events.Finished():
                pass


def plain(event: events.Event) -> dict[str, Any]:
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
