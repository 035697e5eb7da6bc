"""All routers of the API, in the order of the documentation."""

from __future__ import annotations

from server.api import batches, catalogue, events, files, jobs, keys, projects, results

ALL = (
    jobs.router,
    jobs.listing_router,
    batches.router,
    batches.templates_router,
    jobs.estimates_router,
    files.databases_router,
    jobs.control_router,
    results.tasks_router,
    results.trials_router,
    results.curves_router,
    results.search_router,
    events.router,
    files.log_router,
    files.artifacts_router,
    events.several_router,
    catalogue.operators_router,
    catalogue.devices_router,
    catalogue.cost_models_router,
    projects.router,
    projects.webhooks_router,
    keys.router,
    keys.sessions_router,
    catalogue.health_router,
)
