"""What measures, and who: devices and tuners."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import fastapi

from server.dashboard import formats, render
from server.store import tuners as store_tuners
from server.web import dependencies

router = fastapi.APIRouter(route_class=render.Page, include_in_schema=False)

#: What is shown of `felix.target.Hardware`, with its unit.
FACTS: Mapping[str, tuple[str, Callable[[Any], str]]] = {
    "cores": ("Cores", formats.count),
    "clock_ghz": ("Clock", lambda value: f"{value:.2f} GHz"),
    "vector_lanes": ("float32 lanes of a vector", formats.count),
    "peak_fp32_gflops": ("Peak float32", lambda value: f"{formats.number(value)} GFLOP/s"),
    "dram_bandwidth_gbs": ("Memory bandwidth", lambda value: f"{formats.number(value)} GB/s"),
    "l1_bytes": ("L1", formats.memory),
    "l2_bytes": ("L2", formats.memory),
    "l3_bytes": ("L3", formats.memory),
    "max_threads_per_block": ("Threads a block", formats.count),
    "shared_bytes_per_block": ("Shared memory a block", formats.memory),
}
_OF_GPUS = ("max_threads_per_block", "shared_bytes_per_block")

#: Tuners that are gone are shown up to this number.
MAX_GONE = 20


@router.get("/dashboard/devices")
def devices(
    request: fastapi.Request, viewer: render.Viewer, services: dependencies.ServicesDep
) -> fastapi.Response:
    """Devices by kind; tuners, newest first."""
    stale_s = services.settings.stale_s
    with viewer.read() as tx:
        tuners = store_tuners.every(tx, stale_s)
        reports = store_tuners.reports_of(tx, [tuner.id for tuner in tuners])
    gone = [tuner for tuner in tuners if not tuner.is_alive]
    return render.page(
        request,
        "devices.html",
        viewer,
        devices=[
            (each, facts(each.kind, each.hardware))
            for each in store_tuners.devices(tuners, reports)
        ],
        tuners=[tuner for tuner in tuners if tuner.is_alive] + gone[:MAX_GONE],
        n_hidden=max(0, len(gone) - MAX_GONE),
        stale_s=stale_s,
    )


def facts(kind: str, hardware: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What a person wants to know of a device: label and value."""
    return [
        (label, write(hardware[name]))
        for name, (label, write) in FACTS.items()
        if hardware.get(name) and not (kind == "llvm" and name in _OF_GPUS)
    ]
