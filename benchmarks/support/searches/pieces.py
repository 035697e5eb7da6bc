"""What the process of a piece does with its request, and the file that it writes."""

from __future__ import annotations

import os
import pathlib
import tempfile
from typing import Any

from benchmarks.support import common
from benchmarks.support.searches import first_choice, stock, tuned, vendor, winners


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
            results = tuned.tune(request)
    settings = {key: request[key] for key in ("name", "workload", "seed", "strategy", "trials")}
    measured_on = common.header("search_efficiency") | {"device": _device(request["target"])}
    common.write(
        pathlib.Path(request["path"]), {**settings, "measured_on": measured_on, **results}
    )


def _winners(request: dict[str, Any]) -> dict[str, Any]:
    from felix import workloads

    task = workloads.parse(request["workload"], target=request["target"])
    return winners.timed(task, winners.read(_searched(request, [*tuned.TUNED, "stock"])))


def _vendor(request: dict[str, Any]) -> dict[str, Any]:
    """The libraries, and what Felix's pieces of this seed wrote, in turns."""
    from felix import workloads

    task = workloads.parse(request["workload"], target=request["target"])
    felix = {}
    for strategy, piece in _searched(request, ["felix", "first"]).items():
        programs = winners.read_one(piece) if piece.exists() else []
        if programs:
            felix[strategy] = vendor.tuned(task, programs[0])
    by_layout = vendor.in_turns_us(vendor.calls(request["workload"]), felix)
    return {"latency_us": vendor.best(by_layout)}


def _searched(request: dict[str, Any], strategies: list[str]) -> dict[str, pathlib.Path]:
    """Where the pieces of strategies of the same subgraph and seed are."""
    work = pathlib.Path(request["path"]).parent
    return {each: path_of(work, request["name"], request["seed"], each) for each in strategies}


def _device(target: str) -> str:
    """Name of the device that runs programs of a target here."""
    from felix import target as felix_target

    return str(felix_target.hardware(felix_target.parse(target)).name)
