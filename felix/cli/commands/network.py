"""`felix tune net.onnx` and `felix tune net.pt2`: a whole network."""

from __future__ import annotations

import argparse
import json
import pathlib
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from felix import errors
from felix.artifact import export
from felix.cli import interrupts, measuring, progress, values
from felix.cli.commands import inputs

if TYPE_CHECKING:
    from felix.network.report import Report

_Shapes: TypeAlias = Mapping[str, list[int]] | None

#: Ends of the names of files that hold a network: of ONNX, and of `torch.export.save`.
SUFFIXES = (".onnx", ".pt2")


def is_network(workloads: Sequence[str]) -> bool:
    """Whether the workloads of a command name a network.

    Raises:
        WorkloadError: one of several does.
    """
    networks = [text for text in workloads if text.endswith(SUFFIXES)]
    if networks and len(workloads) > 1:
        raise errors.WorkloadError(
            f"{networks[0]} is a whole network: tune it by itself, not with other workloads"
        )
    return bool(networks)


def run(arguments: argparse.Namespace) -> int:
    """Optimize the network, write its artifact and report; the exit code."""
    if arguments.strategy is not None or arguments.model is not None:
        raise errors.TuningError(
            "a network is tuned by the default strategy with the shipped "
            "model: leave out --strategy and --model"
        )
    path = arguments.workload[0]
    out = export.check_writable(arguments.out)
    summary = _written(path, arguments, out)
    if arguments.json:
        print(json.dumps({**summary.to_json(), "out": str(out)}, indent=1))
    if not arguments.quiet or not arguments.json:
        human = sys.stderr if arguments.json else sys.stdout
        there = " where its device is" if arguments.cluster else ""
        print(f"{summary}\nrun it{there}: python {out / 'run.py'}", file=human)
    return interrupts.EXIT_CODE if summary.reason == "interrupted" else 0


def _written(path: str, arguments: argparse.Namespace, out: pathlib.Path) -> Report:
    """Tune, build and write the network; what ships."""
    model, shapes = _read(path, arguments.shape)
    pool = measuring.pool_of_cluster(arguments.cluster)
    target = arguments.target or inputs.DEFAULT_TARGET
    how = {"shapes": shapes, "fusion": arguments.fusion, "allow_tf32": arguments.allow_tf32}
    with progress.tuning(arguments, pool=pool) as (chosen, on_event):
        from felix.known_results import databases
        from felix.network import elsewhere, optimize, outcomes

        asked = {
            "trials": arguments.trials,
            "seed": arguments.seed,
            "options": chosen,
            "out": out,
            "on_event": on_event,
            "improve": arguments.improve,
        }
        if not arguments.cluster:
            fast = optimize.optimize(
                model,
                **asked,
                **how,
                seconds=arguments.seconds,
                target=target,
                pytorch=not arguments.no_pytorch,
                database=arguments.database,
            )
            fast.export(out)
            return fast.report
        has_limit = arguments.seconds is not None or arguments.trials is not None
        given = arguments.database
        request = outcomes.Request(
            **asked,
            seconds=arguments.seconds if has_limit else optimize.DEFAULT_SECONDS,
            pytorch=False,
            database=None if given is None else databases.Database(given),
        )
        return elsewhere.tune(model, out, request, target, **how)


def _read(path: str, shapes: Sequence[str] | None) -> tuple[Any, _Shapes]:
    """(model, shapes) as `felix.optimize` takes them."""
    if path.endswith(".onnx"):
        return path, values.shapes(shapes)
    if shapes:
        raise errors.WorkloadError("--shape is for ONNX files: a .pt2 file has its shapes")
    import torch

    try:
        return torch.export.load(path), None
    except (OSError, RuntimeError, ValueError, KeyError) as error:
        line = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise errors.WorkloadError(f"cannot read {path}: {line}") from error
