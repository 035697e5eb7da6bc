"""All routers of the API, in the order of the documentation."""

from __future__ import annotations

from server.api import (
    cost_models,
    devices,
    health,
    keys,
    operators,
    projects,
    sessions,
    webhooks,
)
from server.api import events as events_of_several
from server.api.batches import batches, templates
from server.api.jobs import (
    artifacts,
    control,
    curves,
    databases,
    estimates,
    events,
    jobs,
    listing,
    log,
    search,
    tasks,
    trials,
)

ALL = tuple(
    module.router
    for module in (
        jobs, listing, batches, templates, estimates, databases, control, tasks, trials, curves,
        search, events, log, artifacts, events_of_several, operators, devices, cost_models,
        projects, webhooks, keys, sessions, health,
    )
)  # fmt: skip
