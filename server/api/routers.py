"""All routers of the API, in the order of the documentation."""

from __future__ import annotations

from server.api import cost_models, devices, health, keys, operators, sessions
from server.api.jobs import (
    artifacts,
    control,
    curves,
    events,
    jobs,
    search,
    tasks,
    trials,
)

ALL = tuple(
    module.router
    for module in (
        jobs, control, tasks, trials, curves, search, events, artifacts,
        operators, devices, cost_models, keys, sessions, health,
    )
)  # fmt: skip
