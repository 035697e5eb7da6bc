"""`felix tune net.onnx` and `felix tune net.pt2`: a whole network; `felix tune --queued`: what
`torch.compile(..., backend="felix")` met unknown; `felix known`."""

from __future__ import annotations

import argparse
import json
import pathlib
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from felix import errors
from felix.artifact import export
from felix.cli import interrupts, measuring, progress, values
from felix.cli.commands import inputs

if TYPE_CHECKING:
    from felix.network.backend.queued import Summary
    from felix.network.report import Report


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
    _check_default(arguments, "a network")
    path = arguments.workload[0]
    out = export.check_writable(arguments.out)
    summary, has_artifact = _written(path, arguments, out)
    there = " where its device is" if arguments.cluster else ""
    run_it = f"run it{there}: python {out / 'run.py'}" if has_artifact else "there is no artifact"
    place = str(out) if has_artifact else None
    _report(arguments, {**summary.to_json(), "out": place}, f"{summary}\n{run_it}")
    if not has_artifact:
        return 1
    return interrupts.EXIT_CODE if summary.reason == "interrupted" else 0


def _written(path: str, arguments: argparse.Namespace, out: pathlib.Path) -> tuple[Report, bool]:
    """Tune, build and write the network; what ships, and whether there was time to build it."""
    model, of_inputs = _read(path, arguments)
    pool = measuring.pool_of_cluster(arguments.cluster)
    target = arguments.target or inputs.DEFAULT_TARGET
    how = {**of_inputs, "fusion": arguments.fusion, "allow_tf32": arguments.allow_tf32}
    with progress.tuning(arguments, pool=pool) as (chosen, on_event):
        from felix.database import databases
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
            if fast.executable is not None:
                fast.export(out)
            return fast.report, fast.executable is not None
        has_limit = arguments.seconds is not None or arguments.trials is not None
        given = arguments.database
        request = outcomes.Request(
            **asked,
            seconds=arguments.seconds if has_limit else optimize.DEFAULT_SECONDS,
            pytorch=False,
            database=None if given is None else databases.Database(given),
        )
        return elsewhere.tune(model, out, request, target, **how), True


def _read(path: str, arguments: argparse.Namespace) -> tuple[Any, dict[str, Any]]:
    """(model, shapes and values of inputs) as `felix.optimize` takes them."""
    if path.endswith(".onnx"):
        shapes, given = values.shapes(arguments.shape), values.values(arguments.value)
        return path, {"shapes": shapes, "values": given}
    if arguments.shape or arguments.value:
        raise errors.WorkloadError(
            "--shape and --value are for ONNX files: a .pt2 file has its inputs"
        )
    import torch

    try:
        return torch.export.load(path), {}
    except (OSError, RuntimeError, ValueError, KeyError) as error:
        line = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise errors.WorkloadError(f"cannot read {path}: {line}") from error


def _check_default(arguments: argparse.Namespace, what: str) -> None:
    if arguments.strategy is not None or arguments.model is not None:
        raise errors.TuningError(
            f"{what} is tuned by the default strategy with the shipped "
            f"model: leave out --strategy and --model"
        )


def _report(arguments: argparse.Namespace, content: Any, text: str) -> None:
    """Show a result as JSON, as text, or as both."""
    if arguments.json:
        print(json.dumps(content, indent=1))
    if not arguments.quiet or not arguments.json:
        print(text, file=sys.stderr if arguments.json else sys.stdout)


def run_queued(arguments: argparse.Namespace) -> int:
    """Tune what is queued and report; the exit code."""
    if arguments.target is not None or arguments.shape or arguments.value:
        raise errors.TargetError("queued tasks have their targets and shapes: leave them out")
    if arguments.allow_tf32:
        raise errors.TuningError(
            "queued tasks say themselves whether TF32 is allowed (the option "
            "allow_tf32 of the backend): leave out --allow-tf32"
        )
    _check_default(arguments, "the queue")
    from felix.database import store
    from felix.network import outcomes
    from felix.network.backend import queued

    with progress.tuning(arguments) as (chosen, on_event):
        request = outcomes.Request(
            trials=arguments.trials,
            seconds=arguments.seconds,
            seed=arguments.seed,
            options=chosen,
            on_event=on_event,
        )
        summary = queued.work_off(store.Store(), request)
    _report(arguments, queued.to_json(summary), _text(summary))
    if summary.reason == "interrupted":
        return interrupts.EXIT_CODE
    if summary.left and not summary.done:
        name, reason = summary.left[0]
        raise errors.TuningError(f"no queued task was tuned: {name}: {reason}")
    return 0


def _text(summary: Summary) -> str:
    if not summary.done and not summary.left:
        return "nothing is queued"
    lines = [
        f"{each.name} ({each.n_requests} requests): {each.shipped.contender}: "
        f"{each.shipped.untuned or each.shipped.reason}"
        for each in summary.done
    ]
    lines += [f"{name}: still queued: {reason}" for name, reason in summary.left]
    return "\n".join(lines)


def known(arguments: argparse.Namespace) -> int:
    """`felix known`: what is known of networks, as a MetaSchedule database; the exit code."""
    from felix.database import databases, store

    results = store.Store(arguments.known_results)
    if not results.path.exists():
        raise errors.RecordError(f"nothing is known: there is no file {results.path}")
    count = databases.export(results, arguments.out)
    if arguments.json:
        print(json.dumps({"schedules": count, "out": arguments.out}, indent=1))
    else:
        print(f"{count} schedules in {arguments.out}; generated kernels are not among them")
    return 0
