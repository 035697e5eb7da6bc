"""Tasks that are known or wait to be: `felix tune --queued`, which tunes what `torch.compile(...,
backend="felix")` met unknown, and `felix known`."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING

from felix import errors
from felix.cli import interrupts, progress

if TYPE_CHECKING:
    from felix.network.backend.queued import Summary


def run(arguments: argparse.Namespace) -> int:
    """Tune what is queued and report; the exit code."""
    if arguments.target is not None or arguments.shape:
        raise errors.TargetError("queued tasks have their targets and shapes: leave them out")
    if arguments.allow_tf32:
        raise errors.TuningError(
            "queued tasks say themselves whether TF32 is allowed (the option "
            "allow_tf32 of the backend): leave out --allow-tf32"
        )
    if arguments.strategy is not None or arguments.model is not None:
        raise errors.TuningError(
            "the queue is tuned by the default strategy with the shipped "
            "model: leave out --strategy and --model"
        )
    summary = _worked_off(arguments)
    from felix.network.backend import queued

    if arguments.json:
        print(json.dumps(queued.to_json(summary), indent=1))
    if not arguments.quiet or not arguments.json:
        print(_text(summary), file=sys.stderr if arguments.json else sys.stdout)
    if summary.reason == "interrupted":
        return interrupts.EXIT_CODE
    if summary.left and not summary.done:
        name, reason = summary.left[0]
        raise errors.TuningError(f"no queued task was tuned: {name}: {reason}")
    return 0


def _worked_off(arguments: argparse.Namespace) -> Summary:
    from felix.known_results import store
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
        return queued.work_off(store.Store(), request)


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
    from felix.known_results import databases, store

    results = store.Store(arguments.known_results)
    if not results.path.exists():
        raise errors.RecordError(f"nothing is known: there is no file {results.path}")
    count = databases.export(results, arguments.out)
    if arguments.json:
        print(json.dumps({"schedules": count, "out": arguments.out}, indent=1))
    else:
        print(f"{count} schedules in {arguments.out}; generated kernels are not among them")
    return 0
