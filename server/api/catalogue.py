"""What the service has: operators, cost models, devices and tuners; whether it works."""

from __future__ import annotations

import functools
import hashlib
import json
import pathlib
import tempfile
from typing import Annotated, Any

import anyio.to_thread
import fastapi

import costmodel
from server import cache, errors, folders
from server.api import responding
from server.database import schema
from server.store import blobs
from server.store import tuners as store_tuners
from server.web import auth, dependencies, response_bodies
from server.web import metrics as web_metrics

operators_router = fastapi.APIRouter(prefix="/v1/operators", tags=["operators"])


@operators_router.get("")
def every(caller: auth.Reader) -> dict[str, dict[str, Any]]:
    """JSON Schema of the parameters of every operator, by name."""
    return caller.services.parser.operators()


@operators_router.get("/{name}")
def get(
    name: Annotated[str, fastapi.Path(max_length=100, examples=["gemm"])], caller: auth.Reader
) -> dict[str, Any]:
    """JSON Schema of one operator's parameters."""
    schema: dict[str, Any] | None = caller.services.parser.operators().get(name)
    if schema is None:
        raise errors.NotFound(f"there is no operator {name!r}: see /v1/operators")
    return schema


cost_models_router = fastapi.APIRouter(prefix="/v1/models", tags=["models"])

_FOLDER = pathlib.Path(costmodel.__file__).parent / "pretrained"


@cost_models_router.get("", name="every")
def every_model(caller: auth.Reader) -> response_bodies.Listed[response_bodies.Model]:
    """The shipped cost models, by device kind."""
    return response_bodies.Listed(items=list(_shipped()))


@functools.cache
def _shipped() -> tuple[response_bodies.Model, ...]:
    return tuple(_read(path) for path in sorted(_FOLDER.glob("*/model.safetensors")))


def _read(path: pathlib.Path) -> response_bodies.Model:
    content = path.read_bytes()
    size = int.from_bytes(content[:8], "little")
    head = json.loads(content[8 : 8 + size])
    card = path.with_name("MODEL_CARD.md")
    return response_bodies.Model(
        name=path.parent.name,
        sha256=hashlib.sha256(content).hexdigest(),
        size_bytes=len(content),
        metadata={name: _value(text) for name, text in head.get("__metadata__", {}).items()},
        card=card.read_text() if card.is_file() else "",
    )


def _value(text: str) -> Any:
    """Metadata are texts, some of them JSON."""
    try:
        return json.loads(text)
    except ValueError:
        return text


devices_router = fastapi.APIRouter(prefix="/v1", tags=["devices"])


@devices_router.get("/workers")
def tuners(
    caller: auth.Reader,
    alive: Annotated[bool | None, fastapi.Query(description="only these")] = None,
) -> response_bodies.Listed[response_bodies.Worker]:
    """Tuners, newest first."""
    with caller.read() as tx:
        every = store_tuners.every(tx, caller.services.settings.stale_s)
    selected = [tuner for tuner in every if alive is None or tuner.is_alive is alive]
    return response_bodies.listed(response_bodies.Worker, selected)


@devices_router.get("/devices")
def devices(caller: auth.Reader) -> response_bodies.Listed[response_bodies.Device]:
    """The devices that tuners have or had, by kind and name."""
    with caller.read() as tx:
        tuners = store_tuners.every(tx, caller.services.settings.stale_s)
        reports = store_tuners.reports_of(tx, [tuner.id for tuner in tuners])
    grouped = store_tuners.devices(tuners, reports)
    return response_bodies.listed(response_bodies.Device, grouped)


health_router = fastapi.APIRouter(tags=["health"])


@health_router.get("/healthz")
async def healthz() -> response_bodies.Health:
    """The process works."""
    return response_bodies.Health(status="ok")


@health_router.get("/readyz", response_model=response_bodies.Ready)
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


@health_router.get("/metrics", **responding.file_of("text/plain", fastapi.Response))
def metrics(request: fastapi.Request, caller: auth.Reader) -> fastapi.Response:
    """Counts and times, in Prometheus' text format; jobs are counted that the key sees."""
    application_metrics = request.app.state.metrics
    return fastapi.Response(
        application_metrics.text(caller.sees), media_type=web_metrics.CONTENT_TYPE
    )
