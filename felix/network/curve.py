"""The latency of a network while it is tuned, against the seconds since the call."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence

from felix import events
from felix.task import Task
from felix.tuning.options import OnEvent

#: A point (seconds since the call, latency in us).
Point = tuple[float, float]


class Curve:
    """Adds up what the groups take by now, by PyTorch or by the best program, whichever is faster;
    the sum is of calls with cold caches, like a report's.

    It is an `OnEvent` for the run of some tasks, which gets its events; each gain becomes one
    more (`events.NetworkLatency`). There is no point as long as nothing is known of a group.

    Args:
        every: all tasks of the network, weighted by their calls.
        run: those that are tuned, in the order of the run.
        known_us: what is known before, by keys of tasks: PyTorch's operators, or known results.
        begun_s: when the call began (`time.monotonic`).
        on_event: gets all events; None: nobody.

    Attributes:
        points: the first one is what is known before.
    """

    def __init__(
        self,
        every: Sequence[Task],
        run: Sequence[Task],
        known_us: Mapping[str, float],
        begun_s: float,
        on_event: OnEvent | None,
    ) -> None:
        self._weights = {task.key: task.weight for task in every}
        self._keys = [task.key for task in run]
        self._us = {key: known_us.get(key, math.inf) for key in self._weights}
        self._begun_s, self._on_event = begun_s, on_event
        self.points: list[Point] = []

    def __call__(self, event: events.Event) -> None:
        """Pass an event on, and what follows of it for the network."""
        if self._on_event is not None:
            self._on_event(event)
        match event:
            case events.Started():
                self._add_point()
            case events.Trial(task_index=index, latency_us=us) if us is not None:
                self._take(index, us)
            case events.Baseline(task_index=index, latency_us=us) if us is not None:
                self._take(index, us)

    def _take(self, index: int, latency_us: float) -> None:
        key = self._keys[index]
        if latency_us < self._us[key]:
            self._us[key] = latency_us
            self._add_point()

    def _add_point(self) -> None:
        latency_us = sum(weight * self._us[key] for key, weight in self._weights.items())
        if math.isinf(latency_us):
            return
        self.points.append((time.monotonic() - self._begun_s, latency_us))
        if self._on_event is not None:
            elapsed_s, latency_us = self.points[-1]
            self._on_event(events.NetworkLatency(latency_us=latency_us, elapsed_s=elapsed_s))
