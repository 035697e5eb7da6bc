"""What measures, and who: devices and tuners.

Reads `server.store.workers`; feeds browsers.
"""

from __future__ import annotations

import fastapi

from server.api import context
from server.api import devices as api_devices
from server.dashboard import render
from server.store import workers

router = fastapi.APIRouter(route_class=render.Page, include_in_schema=False)

#: Tuners that are gone are shown up to this number.
MAX_GONE = 20


@router.get("/dashboard/devices")
def devices(
    request: fastapi.Request, viewer: render.Viewer, services: context.Needed
) -> fastapi.Response:
    """Devices by kind; tuners, newest first."""
    stale_s = api_devices.STALE_LEASES * services.settings.lease_s
    with services.db.read() as tx:
        found = workers.every(tx, stale_s)
    gone = [one for one in found if not one.is_alive]
    return render.page(
        request, "devices.html", viewer,
        devices=api_devices.grouped(found),
        tuners=[one for one in found if one.is_alive] + gone[:MAX_GONE],
        n_hidden=max(0, len(gone) - MAX_GONE),
        stale_s=stale_s,
    )  # fmt: skip
