"""How a device of a pool is: what waits for it, what it measured and why it measures nothing."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable


@dataclasses.dataclass(frozen=True, slots=True)
class Condition:
    """Of one device; counts are of the last hour.

    `place` names the device among those of its tuner, like "cuda:0" or a node of a cluster.
    """

    place: str
    queue: int = 0
    n_measured: int = 0
    n_failed: int = 0
    fault: str | None = None


def merged(of_pools: Iterable[Condition]) -> list[Condition]:
    """One condition a place, of those that several pools have of their devices."""
    by_place: dict[str, Condition] = {}
    for each in of_pools:
        known = by_place.get(each.place, Condition(each.place))
        by_place[each.place] = Condition(
            each.place,
            known.queue + each.queue,
            known.n_measured + each.n_measured,
            known.n_failed + each.n_failed,
            known.fault or each.fault,
        )
    return list(by_place.values())
