"""`felix devices`: what this machine can tune for, with the rates Felix assumes."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys

from felix import target
from felix.processes import confine
from felix.search import cost_model


def run(arguments: argparse.Namespace) -> int:
    """List the devices; the exit code."""
    devices = target.devices()
    confinement = confine.available()
    if arguments.json:
        content = [
            {
                "name": device.name,
                "kind": str(device.target.kind.name),
                "target": json.loads(target.describe(device.target)),
                "hardware": dataclasses.asdict(device.hardware),
                "pretrained": _pretrained(device),
            }
            for device in devices
        ]
        print(json.dumps(content, indent=1))
        return 0
    from rich import box, console, table

    rows = table.Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("target", "device", "cores", "GHz", "peak GFLOP/s", "DRAM GB/s", "cost model"):
        rows.add_column(name, justify="left" if name in ("target", "device") else "right")
    for device in devices:
        rates = device.hardware
        rows.add_row(
            str(device.target.kind.name),
            device.name,
            str(rates.cores),
            f"{rates.clock_ghz:.2f}",
            f"{rates.peak_fp32_gflops:.0f}",
            f"{rates.dram_bandwidth_gbs:.0f}",
            "analytic" if _pretrained(device) is None else "pretrained",
        )
    out = console.Console(file=sys.stdout, width=None if sys.stdout.isatty() else 120)
    out.print(rows)
    out.print(f"measuring processes are confined by: {confinement}", style="dim")
    for lack in confinement.missing:
        out.print(f"this system has {lack}", style="yellow")
    return 0


def _pretrained(device: target.Device) -> str | None:
    path = cost_model.pretrained(device.target)
    return None if path is None else str(path)
