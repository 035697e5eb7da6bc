"""`/v1/devices` and `/v1/workers`: what measures, and who."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any

import fastapi

from server.store import rows, workers
from server.web import auth, dependencies, responses

router = fastapi.APIRouter(prefix="/v1", tags=["devices"])

#: Leases without a beat after which a tuner counts as gone.
STALE_LEASES = 1.0


@router.get("/workers")
def tuners(
    caller: auth.Reader,
    services: dependencies.Needed,
    alive: Annotated[bool | None, fastapi.Query(description="only these")] = None,
) -> responses.Listed[responses.Worker]:
    """Tuners, newest first."""
    found = [w for w in _workers(services) if alive is None or w.is_alive is alive]
    return responses.Listed(items=[responses.Worker.model_validate(one) for one in found])


@router.get("/devices")
def devices(
    caller: auth.Reader, services: dependencies.Needed
) -> responses.Listed[responses.Device]:
    """The devices that tuners have or had, by kind and name."""
    return responses.Listed(items=grouped(_workers(services)))


def _workers(services: dependencies.Services) -> list[rows.Worker]:
    with services.db.read() as tx:
        return workers.every(tx, STALE_LEASES * services.settings.lease_s)


def grouped(found: Iterable[rows.Worker]) -> list[responses.Device]:
    """The devices of tuners, by kind and name."""
    kept: dict[tuple[str, str], tuple[dict[str, Any], list[rows.Worker]]] = {}
    for worker in found:
        for device in worker.devices:
            exact = (str(device["kind"]), str(device["target_keys"][-1]))
            kept.setdefault(exact, (device, []))[1].append(worker)
    return [
        responses.Device(
            **{name: device[name] for name in ("name", "kind", "target_keys", "target",
                                               "hardware", "model")},
            n_tuners_alive=sum(worker.is_alive for worker in its),
            worker_ids=[worker.id for worker in its],
        )
        for _, (device, its) in sorted(kept.items(), key=lambda item: item[0])
    ]  # fmt: skip
