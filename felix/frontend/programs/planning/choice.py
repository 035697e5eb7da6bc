"""The candidates that give every output of a model at the least sum of their costs.

Dynamic programming over the operators from the last to the first. A state is the set of operators
whose results are still to be computed, with the least cost of what is chosen behind them. Its last
operator becomes the root of one of its candidates, whose inputs take its place in the set:

    cost(S - {r} + inputs(c))  <-  cost(S) + latency(c)      r = max(S), c a candidate of root r

Roots come behind all that they read, so no choice has a cycle, whatever the groups. Where layers
meet in few values the states are few. More than `MAX_STATES` of one last operator are cut to those
with the least cost so far and estimate of what is left; the choice is the cheapest as long as
there are fewer.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from felix.frontend.programs.planning.graph import Candidate, Graph

#: States of one last operator that are looked at.
MAX_STATES = 128

#: The least cost of a state, and how it was reached: a candidate, and the state before.
_Reached: TypeAlias = "tuple[float, Candidate | None, _Reached | None]"


def choose(
    graph: Graph, latency_us: Mapping[Candidate, float], known: Sequence[Sequence[Candidate]]
) -> list[Candidate]:
    """The cheapest choice, in the order of the roots.

    Args:
        latency_us: the candidates with their costs.
        known: choices. The cheapest of them is the result if nothing is cheaper.
    """
    choices = [*known, _cheapest(graph, latency_us)]
    best = min(choices, key=lambda each: _sum(each, latency_us))
    return sorted(best, key=lambda each: each.root)


def _sum(chosen: Sequence[Candidate], latency_us: Mapping[Candidate, float]) -> float:
    return sum(latency_us[each] for each in chosen)


def _cheapest(graph: Graph, latency_us: Mapping[Candidate, float]) -> list[Candidate]:
    of_root = _undominated(latency_us)
    left_us = _estimates(graph, of_root)
    states: defaultdict[int, dict[int, _Reached]] = defaultdict(dict)
    first = _mask(graph.outputs)
    states[first.bit_length() - 1][first] = (0.0, None, None)
    for root in range(len(graph.operators) - 1, -1, -1):
        for mask, reached in _best(states.pop(root, {}), left_us):
            rest = mask ^ (1 << root)
            for cost_us, inputs, each in of_root.get(root, ()):
                after = rest | inputs
                bucket = states[after.bit_length() - 1]
                total_us = reached[0] + cost_us
                if after not in bucket or total_us < bucket[after][0]:
                    bucket[after] = (total_us, each, reached)
    return _path(states[-1][0])


def _best(states: Mapping[int, _Reached], left_us: Sequence[float]) -> list[tuple[int, _Reached]]:
    """The states to look at: all, or those that promise the least cost."""
    if len(states) <= MAX_STATES:
        return list(states.items())

    def promise(item: tuple[int, _Reached]) -> float:
        mask, reached = item
        return reached[0] + sum(left_us[n] for n in _numbers(mask))

    return sorted(states.items(), key=promise)[:MAX_STATES]


def _estimates(
    graph: Graph, of_root: Mapping[int, Sequence[tuple[float, int, Candidate]]]
) -> list[float]:
    """What each operator's result costs, with its share of what it is computed from."""
    estimates: list[float] = []
    for number in range(len(graph.operators)):
        totals = [
            cost_us + sum(estimates[v] / max(1, len(graph.readers[v])) for v in _numbers(inputs))
            for cost_us, inputs, _ in of_root.get(number, ())
        ]
        estimates.append(min(totals, default=math.inf))
    return estimates


def _undominated(
    latency_us: Mapping[Candidate, float],
) -> dict[int, list[tuple[float, int, Candidate]]]:
    """Of each root the cost, inputs and candidate of those that no other one beats."""
    best: dict[tuple[int, int], tuple[float, int, Candidate]] = {}
    for each, cost_us in latency_us.items():
        inputs = _mask(each.inputs)
        key = each.root, inputs
        if key not in best or cost_us < best[key][0]:
            best[key] = (cost_us, inputs, each)
    of_root = defaultdict(list)
    for (root, _), entry in best.items():
        of_root[root].append(entry)
    return of_root


def _mask(values: frozenset[int]) -> int:
    return sum(1 << value for value in values if value >= 0)


def _numbers(mask: int) -> list[int]:
    numbers = []
    while mask:
        number = mask.bit_length() - 1
        numbers.append(number)
        mask ^= 1 << number
    return numbers


def _path(reached: _Reached | None) -> list[Candidate]:
    path = []
    while reached is not None:
        _, each, reached = reached
        if each is not None:
            path.append(each)
    return path
