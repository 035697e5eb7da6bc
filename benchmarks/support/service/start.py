"""How soon the first submit after a start has a point of its curve."""

from __future__ import annotations

import argparse
import time
from typing import Any

import httpx

from benchmarks.support.service import process as service_process
from felix.workloads import catalogue

LIMIT_S = 120.0
POLL_S = 0.02


def run(service: service_process.Service, chosen: argparse.Namespace) -> dict[str, Any]:
    """Start the API and one tuner, and submit as soon as the API answers; the figures."""
    name, params = catalogue.parse_params(chosen.workload)
    body = {
        "workload": {"kind": "operator", "name": name, "params": params},
        "trials": chosen.trials,
    }
    began_s = time.monotonic()
    client = httpx.Client(base_url=f"{service.url}/v1", headers=service.headers, timeout=60)
    with service.serving(with_tuner=True), client:
        ready_s = time.monotonic() - began_s
        response = client.post("/jobs", json=body)
        response.raise_for_status()
        submitted_s = time.monotonic()
        path = f"/jobs/{response.json()['id']}/curve"
        while not client.get(path).json()["points"]:
            if time.monotonic() - submitted_s > LIMIT_S:
                raise SystemExit(f"no point in {LIMIT_S:g} s")
            time.sleep(POLL_S)
        point_s = time.monotonic() - submitted_s
    print(f"ready after {ready_s:.1f} s, first point {point_s:.1f} s after the submit")
    return {"workload": chosen.workload, "ready_s": ready_s, "first_point_s": point_s}
