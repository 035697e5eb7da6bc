"""Progress of a run on stderr: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from felix import events
from felix.cli import interrupts, report
from felix.tuning import options, pacing

if TYPE_CHECKING:
    from rich import progress


@contextlib.contextmanager
def tuning(
    arguments: argparse.Namespace, **more: Any
) -> Iterator[tuple[options.TuneOptions, options.OnEvent]]:
    """What the options of a command, and `more` of them, ask of a run, and what shows its events.

    A signal ends the run; before there is anything to report, it raises KeyboardInterrupt.
    """
    reporter: contextlib.AbstractContextManager[options.OnEvent]
    if arguments.quiet:
        reporter = contextlib.nullcontext(lambda event: None)
    else:
        reporter = _bar() if sys.stderr.isatty() else contextlib.nullcontext(_print)
    both = interrupts.Interrupts(signal.SIGINT, signal.SIGTERM)
    with reporter as on_event, both as signals:
        chosen = options.TuneOptions(
            round_size=arguments.round,
            patience_rounds=arguments.patience,
            devices=arguments.devices,
            should_stop=signals.noted,
            **more,
        )
        try:
            yield chosen, on_event
        except pacing.Stopped:
            raise KeyboardInterrupt from None


def text(event: events.Event) -> str | None:
    """One line about an event; None for those that need none."""
    match event:
        case events.Started():
            names = ", ".join(event.tasks[:3]) + (", ..." if len(event.tasks) > 3 else "")
            again = f", {event.resumed_trials} trials done before" if event.resumed_trials else ""
            return f"tuning {names} by {event.strategy} search; {event.model}{again}"
        case events.Opened():
            return f"{event.task}: {event.n_sketches} sketches in {event.extract_s:.1f} s"
        case events.Skipped():
            return f"{event.task} is skipped: {event.reason}"
        case events.Baseline() if event.latency_us is not None:
            return f"{event.task}: {event.program} {report.duration(event.latency_us)}"
        case events.Baseline():
            return f"{event.task}: the {event.program} was not timed ({event.message})"
        case events.RoundStarted():
            hope = ""
            if event.predicted_us is not None:
                hope = f", predicted {report.duration(event.predicted_us)} and more"
            return (
                f"{event.task}: round {event.round + 1} with {event.n_candidates} candidates"
                f"{hope} ({event.elapsed_s:.1f} s)"
            )
        case events.Trial() if event.is_best:
            return f"{event.task}: {report.duration(event.best_us)} in trial {event.trial}"
        case events.NetworkLatency():
            return f"network: {report.duration(event.latency_us)} ({event.elapsed_s:.0f} s)"
        case events.Chosen() if event.ships_unscheduled:
            why = f"the {event.program} was faster"
            if event.tuned_us is None:
                why = f"no schedule ran correctly, but the {event.program} did"
            latency = report.duration(event.unscheduled_us)
            return f"{event.task}: {why} ({latency}): it is what ships"
        case events.Warned():
            return f"warning: {event.message}"
        case events.Finished():
            return f"{event.trials} trials in {event.elapsed_s:.1f} s, ended by: {event.reason}"
    return None


def _print(event: events.Event) -> None:
    line = text(event)
    if line is not None:
        print(f"felix: {line}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def _bar() -> Iterator[options.OnEvent]:
    from rich import console, progress

    bar = progress.Progress(
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        progress.TextColumn("{task.completed:.0f}{task.fields[of]}"),
        progress.TextColumn("{task.fields[best]}"),
        progress.TextColumn("{task.fields[network]}"),
        progress.TimeElapsedColumn(),
        console=console.Console(file=sys.stderr),
        refresh_per_second=1,  # drawing takes a core from a kernel that is being timed
    )
    with bar:
        number = bar.add_task("starting", total=None, of="", best="", network="")
        yield lambda event: _advance(bar, number, event)


def _advance(bar: progress.Progress, number: progress.TaskID, event: events.Event) -> None:
    """Move the bar; what is worth keeping is printed above it."""
    match event:
        case events.Started():
            bar.print(text(event), highlight=False)
            total = event.trials
            bar.update(
                number,
                total=total,
                completed=event.resumed_trials,
                of="" if total is None else f"/{total}",
            )
        case events.RoundStarted():
            bar.update(number, description=f"{event.task} round {event.round + 1}")
        case events.NetworkLatency():
            bar.update(number, network=f"network {report.duration(event.latency_us)}")
        case events.Trial():
            best = "" if event.best_us is None else f"best {report.duration(event.best_us)}"
            bar.update(number, completed=event.trial, best=best)
        case _:
            line = text(event)
            if line is not None:
                bar.print(line, highlight=False)
