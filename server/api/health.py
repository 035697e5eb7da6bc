"""`/healthz`, `/readyz`, `/metrics`: for those who run the service."""

from __future__ import annotations

import fastapi

from server.database import schema
from server.store import workers
from server.web import auth, dependencies, response_bodies
from server.web import metrics as web_metrics

router = fastapi.APIRouter(tags=["health"])


@router.get("/healthz")
async def healthz() -> response_bodies.Health:
    """The process works."""
    return response_bodies.Health(status="ok")


@router.get("/readyz")
def readyz(services: dependencies.ServicesDep) -> response_bodies.Ready:
    """The database works and has this version's schema; else 503."""
    schema.check(services.db)
    with services.db.read() as tx:
        tuners = workers.every(tx, services.settings.stale_s)
    alive = sum(tuner.is_alive for tuner in tuners)
    return response_bodies.Ready(
        status="ready", schema_revision=schema.head(), n_tuners_alive=alive
    )


@router.get("/metrics", response_class=fastapi.Response,
            responses={200: {"content": {"text/plain": {}}}})  # fmt: skip
def metrics(request: fastapi.Request, caller: auth.Reader) -> fastapi.Response:
    """Counts and times, in Prometheus' text format; needs a key with the scope read."""
    application_metrics = request.app.state.metrics
    return fastapi.Response(application_metrics.text(), media_type=web_metrics.CONTENT_TYPE)
