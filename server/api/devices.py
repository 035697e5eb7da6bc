"""`/v1/devices` and `/v1/workers`: what measures, and who."""

from __future__ import annotations

from typing import Annotated

import fastapi

from server.store import rows
from server.store import tuners as store_tuners
from server.web import auth, dependencies, response_bodies

router = fastapi.APIRouter(prefix="/v1", tags=["devices"])


@router.get("/workers")
def tuners(
    caller: auth.Reader,
    services: dependencies.ServicesDep,
    alive: Annotated[bool | None, fastapi.Query(description="only these")] = None,
) -> response_bodies.Listed[response_bodies.Worker]:
    """Tuners, newest first."""
    selected = [w for w in _workers(services, caller) if alive is None or w.is_alive is alive]
    return response_bodies.Listed(
        items=[response_bodies.Worker.model_validate(w) for w in selected]
    )


@router.get("/devices")
def devices(
    caller: auth.Reader, services: dependencies.ServicesDep
) -> response_bodies.Listed[response_bodies.Device]:
    """The devices that tuners have or had, by kind and name."""
    with caller.read() as tx:
        tuners = store_tuners.every(tx, services.settings.stale_s)
        reports = store_tuners.reports_of(tx, [tuner.id for tuner in tuners])
    grouped = store_tuners.devices(tuners, reports)
    return response_bodies.Listed(
        items=[response_bodies.Device.model_validate(each) for each in grouped]
    )


def _workers(services: dependencies.Services, caller: auth.Caller) -> list[rows.Worker]:
    with caller.read() as tx:
        return store_tuners.every(tx, services.settings.stale_s)
