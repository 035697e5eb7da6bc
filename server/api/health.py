"""`/healthz`, `/readyz`, `/metrics`: for those who run the service.

Reads the database and its schema; feeds load balancers and Prometheus.
"""

from __future__ import annotations

import fastapi

from server import auth, schema, web_metrics
from server.api import context, devices, shapes
from server.store import workers

router = fastapi.APIRouter(tags=["health"])


@router.get("/healthz")
async def healthz() -> shapes.Health:
    """The process answers."""
    return shapes.Health(status="ok")


@router.get("/readyz")
def readyz(services: context.Needed) -> shapes.Ready:
    """The database answers and has this version's schema; else 503."""
    schema.check(services.db)
    with services.db.read() as tx:
        found = workers.every(tx, devices.STALE_LEASES * services.settings.lease_s)
    alive = sum(worker.is_alive for worker in found)
    return shapes.Ready(status="ready", schema_revision=schema.head(), n_tuners_alive=alive)


@router.get("/metrics", response_class=fastapi.Response,
            responses={200: {"content": {"text/plain": {}}}})  # fmt: skip
def metrics(request: fastapi.Request, caller: auth.Reader) -> fastapi.Response:
    """Counts and times, in Prometheus' text format; needs a key with the scope read."""
    found = request.app.state.metrics
    return fastapi.Response(found.text(), media_type=web_metrics.CONTENT_TYPE)
