"""What the process of a piece does with its request, and the file that it writes."""

from __future__ import annotations

import os
import pathlib
import tempfile
from typing import Any

from benchmarks.support import common, efficiency, winners
from benchmarks.support.generated import first_choice
from benchmarks.support.lanes import device
from benchmarks.support.searches import stock, timing, tuned


def path_of(work: pathlib.Path, name: str, seed: int, strategy: str) -> pathlib.Path:
    """The file of a piece."""
    return work / f"{name}-s{seed}-{strategy}.json"


def run(request: dict[str, Any], log: str) -> None:
    """Do a piece; what it says goes to the file `log`."""
    with open(log, "w") as file:
        for descriptor in (1, 2):
            os.dup2(file.fileno(), descriptor)
    strategy = request["strategy"]
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["FELIX_CACHE_DIR"] = scratch
        if strategy == "vendor":
            results = _vendor(request)
        elif strategy == "first":
            results = first_choice.piece(request)
        elif strategy == "winners":
            results = _winners(request)
        elif strategy == "stock":
            results = stock.tune(request, scratch)
        else:
            results = tuned.alone(request)
    write(request, results)


def write(request: dict[str, Any], results: dict[str, Any]) -> None:
    """Write the results of a request, with its settings and where it was measured."""
    settings = {key: request[key] for key in request if key not in ("path", "log", "phase")}
    where = _where(request["target"])
    command = where.pop("command")
    common.write(
        pathlib.Path(request["path"]),
        {**settings, "date": where["date"], "command": command, "measured_on": where, **results},
    )


def _where(target: str) -> dict[str, Any]:
    """Command, date, versions; machine and GPU, so that pieces of one machine are known."""
    from felix.measure.cuda import devices

    head = common.header("search_efficiency")
    facts = {key: head[key] for key in ("command", "date", "commit", "versions", "machine")}
    facts["device"] = _device(target)
    if target.startswith("cuda"):
        facts["gpu"] = devices.uuid(0)[:8]
    boot = pathlib.Path("/proc/sys/kernel/random/boot_id")
    if boot.exists():
        facts["boot"] = boot.read_text()[:8]
    return facts


def _winners(request: dict[str, Any]) -> dict[str, Any]:
    from felix import workloads

    task = workloads.parse(request["workload"], target=request["target"])
    work = pathlib.Path(request["path"]).parent
    pieces = {
        strategy: path_of(work, request["name"], request["seed"], strategy)
        for strategy in efficiency.SEARCHES
    }
    return winners.timed(task, winners.read(pieces), timing.patient())


def _vendor(request: dict[str, Any]) -> dict[str, Any]:
    """The libraries, and what Felix's pieces of this seed wrote, in turns."""
    from benchmarks.support import vendor

    by_layout = vendor.in_turns_us(vendor.calls(request["workload"]), felix_calls(request))
    return {"latency_us": vendor.best(by_layout), "by_layout_us": by_layout}


def felix_calls(request: dict[str, Any], turn: device.Turn | None = None) -> dict[str, Any]:
    """The programs that Felix's pieces of a subgraph and seed wrote, on the GPU."""
    from benchmarks.support import vendor
    from felix import workloads

    task = workloads.parse(request["workload"], target=request["target"])
    work = pathlib.Path(request["path"]).parent
    felix = {}
    for strategy in ("felix", "first"):
        piece = path_of(work, request["name"], request["seed"], strategy)
        programs = winners.read_one(piece) if piece.exists() else []
        if programs:
            felix[strategy] = vendor.tuned(task, programs[0], turn)
    return felix


def _device(target: str) -> str:
    """Name of the device that runs programs of a target here."""
    from felix import target as felix_target

    return str(felix_target.hardware(felix_target.parse(target)).name)
