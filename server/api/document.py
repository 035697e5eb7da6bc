"""The OpenAPI document: all routers, our problem details, and an example of every response."""

from __future__ import annotations

from typing import Any

import fastapi
from fastapi.openapi import utils as openapi

from server.api import batches, catalogue, events, examples, files, jobs, keys, projects, results
from server.web import problems as web_problems

TEXT = """\
Submit tensor programs, watch their tuning converge, download the schedules.

All requests need an API key: `Authorization: Bearer felix_...`. Errors are problem details
(RFC 9457, `application/problem+json`). Latencies are microseconds, durations seconds, times UTC.
"""


_PROBLEM = {web_problems.MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
#: The error response that every route may give.
PROBLEMS: dict[int | str, dict[str, Any]] = {
    "default": {"description": "What went wrong", "content": _PROBLEM}
}


def document(app: fastapi.FastAPI) -> dict[str, Any]:
    """The document of an application, made once."""
    if app.openapi_schema is None:
        openapi_document = openapi.get_openapi(
            title=app.title, version=app.version, description=app.description, routes=app.routes
        )
        schemas = openapi_document["components"]["schemas"]
        for name in ("HTTPValidationError", "ValidationError"):
            schemas.pop(name, None)
        schemas["Problem"] = web_problems.SCHEMA
        for path, operations in openapi_document["paths"].items():
            for method, operation in operations.items():
                operation["responses"].pop("422", None)
                _add_example(method, path, operation["responses"])
        app.openapi_schema = openapi_document
    return app.openapi_schema


def _add_example(method: str, path: str, responses: dict[str, Any]) -> None:
    for status, response in responses.items():
        if status.startswith("2"):
            for content in response.get("content", {}).values():
                content.setdefault("schema", {"type": "string"})
                content["example"] = examples.response(method, path)


ROUTERS = (
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
