"""The decisions of trials by name, for the API and the dashboard."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from server.store import rows
from server.web import response_bodies

#: What a block's location means where it is no loop.
_LOCATIONS = {-2: "inlined", -1: "loops of its own"}
#: Labels of no decision name the template of those that follow (`felix.events.Opened`).
_TEMPLATE = "generated kernel "


def named(
    tasks: Iterable[rows.Task], trial: rows.Trial
) -> list[response_bodies.NamedDecision] | None:
    """A trial's decisions by name, in the order of its `decisions`.

    None where their names were not stored.
    """
    labels = next((task.decisions for task in tasks if task.number == trial.task), None)
    groups = (labels or {}).get(str(trial.sketch_index))
    if groups is None or sum(n for _, n in groups) != len(trial.decisions):
        return None
    decisions, begin = [], 0
    for name, n in groups:
        values = trial.decisions[begin : begin + n]
        if n == 0:
            name, text = _TEMPLATE.strip(), name.removeprefix(_TEMPLATE)
        else:
            text = _text(name, values)
        decisions.append(response_bodies.NamedDecision(name=name, values=values, text=text))
        begin += n
    return decisions


def body(tasks: Iterable[rows.Task], trial: rows.Trial) -> response_bodies.Trial:
    """A trial of one of these tasks as a response."""
    return response_bodies.Trial.model_validate(trial).model_copy(
        update={"named_decisions": named(tasks, trial)}
    )


def _text(name: str, values: Sequence[int]) -> str:
    """A decision in words: factors from the outermost on, or where a block is computed."""
    if len(values) > 1:
        return " × ".join(map(str, values))
    if not name.startswith("location of "):
        return str(values[0])
    return _LOCATIONS.get(values[0], f"in loop {values[0]} of its reader")
