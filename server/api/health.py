"""`/healthz`, `/readyz`, `/metrics`: for those who run the service."""

from __future__ import annotations

import functools
import pathlib
import tempfile

import anyio.to_thread
import fastapi

from server import cache, folders
from server.api import responding
from server.database import schema
from server.store import blobs
from server.store import tuners as store_tuners
from server.web import auth, dependencies, response_bodies
from server.web import metrics as web_metrics

router = fastapi.APIRouter(tags=["health"])


@router.get("/healthz")
async def healthz() -> response_bodies.Health:
    """The process works."""
    return response_bodies.Health(status="ok")


@router.get("/readyz", response_model=response_bodies.Ready)
async def readyz(services: dependencies.ServicesDep) -> fastapi.Response:
    """The database has this version's schema and all disks take data; else 503 with the reason."""
    read = functools.partial(anyio.to_thread.run_sync, _ready, services)
    body = await services.response_cache.get(cache.Query("ready", ()), read)
    return fastapi.Response(body, media_type=responding.JSON)


def _ready(services: dependencies.Services) -> bytes:
    schema.check(services.unrestricted_db)
    if services.unrestricted_db.path is not None:
        folders.check_disk(services.unrestricted_db.path.parent, "the database")
    if isinstance(services.blobs, blobs.LocalStore):
        folders.check_disk(services.blobs.folder, "the blob store")
    folders.check_disk(pathlib.Path(tempfile.gettempdir()), "scratch files")
    with services.unrestricted_db.read() as tx:
        tuners = store_tuners.every(tx, services.settings.stale_s)
    alive = sum(tuner.is_alive for tuner in tuners)
    ready = response_bodies.Ready(
        status="ready", schema_revision=schema.head(), n_tuners_alive=alive
    )
    return ready.model_dump_json().encode()


@router.get(
    "/metrics", response_class=fastapi.Response, responses={200: {"content": {"text/plain": {}}}}
)
def metrics(request: fastapi.Request, caller: auth.Reader) -> fastapi.Response:
    """Counts and times, in Prometheus' text format; jobs are counted that the key sees."""
    application_metrics = request.app.state.metrics
    return fastapi.Response(
        application_metrics.text(caller.sees), media_type=web_metrics.CONTENT_TYPE
    )
