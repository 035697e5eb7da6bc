"""What the backend of `torch.compile` made of each graph, and why."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from felix.network.contenders import shipping


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PartReport:
    """A part of a graph: operators that Felix can import, connected or not.

    Attributes:
        name: of the part in its graph.
        operators: names of its operators, in the order of execution.
        is_tuned: whether Felix's network runs it; PyTorch does otherwise.
        reason: why.
        groups: what its groups of operators run in Felix's network; none if it was not imported.
        queued: keys of its tasks that were put into the queue.
        felix_us, pytorch_us: latencies of both by wall clock, None if they were not compared.
    """

    name: str
    operators: Sequence[str]
    is_tuned: bool
    reason: str
    groups: Sequence[shipping.Shipped] = ()
    queued: Sequence[str] = ()
    felix_us: float | None = None
    pytorch_us: float | None = None

    def to_json(self) -> dict[str, Any]:
        """The report as JSON."""
        return {
            "name": self.name,
            "operators": list(self.operators),
            "runs": "felix" if self.is_tuned else "pytorch",
            "reason": self.reason,
            "queued": len(self.queued),
            "felix_us": self.felix_us,
            "pytorch_us": self.pytorch_us,
            "groups": [
                {
                    "name": each.group.name,
                    "calls": each.group.calls,
                    "runs": str(each.contender),
                    "reason": each.reason,
                }
                for each in self.groups
            ],
        }


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SizesReport:
    """A graph for one choice of its dynamic sizes.

    Attributes:
        sizes: the sizes, for people; "" of a graph without dynamic ones.
        parts: its parts; none if the graph could not be traced.
        pytorch: operators that are in no part, with the reason.
        reason: why PyTorch runs the whole graph; None if it does not.
    """

    sizes: str
    parts: Sequence[PartReport]
    pytorch: Mapping[str, str]
    reason: str | None

    def to_json(self) -> dict[str, Any]:
        """The report as JSON."""
        return {
            "sizes": self.sizes,
            "parts": [each.to_json() for each in self.parts],
            "pytorch": dict(self.pytorch),
            "reason": self.reason,
        }


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GraphReport:
    """A graph of `torch._dynamo`.

    Attributes:
        number: it is the n-th graph.
        name: where its code is.
        sizes: what was built, for each choice of sizes; none before the first call.
        n_more_sizes: calls beyond the limit of sizes, which PyTorch ran.
        reason: why PyTorch runs the graph whatever its sizes; None if it does not.
    """

    number: int
    name: str
    sizes: Sequence[SizesReport]
    n_more_sizes: int
    reason: str | None

    def to_json(self) -> dict[str, Any]:
        """The report as JSON."""
        return {
            "number": self.number,
            "name": self.name,
            "sizes": [each.to_json() for each in self.sizes],
            "calls_beyond_the_limit": self.n_more_sizes,
            "reason": self.reason,
        }


@dataclasses.dataclass(frozen=True, slots=True)
class BackendReport:
    """Every graph; `print` shows it.

    `background` is what is done in the background, or what came of it; None without it.
    """

    graphs: Sequence[GraphReport]
    background: str | None = None

    @property
    def parts(self) -> list[PartReport]:
        """The parts of all graphs."""
        return [part for graph in self.graphs for sizes in graph.sizes for part in sizes.parts]

    @property
    def n_queued(self) -> int:
        """Tasks that were put into the queue."""
        return sum(len(part.queued) for part in self.parts)

    def to_json(self) -> dict[str, Any]:
        """The report as JSON."""
        return {
            "queued": self.n_queued,
            "background": self.background,
            "graphs": [each.to_json() for each in self.graphs],
        }

    def __str__(self) -> str:
        if not self.graphs:
            return "no graph was compiled with the backend felix"
        lines = [line for graph in self.graphs for line in _graph_lines(graph)]
        if self.background is not None:
            lines.append(f"in the background: {self.background}")
        elif self.n_queued:
            lines.append(
                f"{self.n_queued} tasks are queued: tune them by felix tune --queued, or in the "
                f'background by options={{"seconds": 60}}'
            )
        return "\n".join(lines)


def _graph_lines(graph: GraphReport) -> list[str]:
    head = f"graph {graph.number} ({graph.name})"
    if graph.reason is not None:
        return [f"{head}: PyTorch: {graph.reason}"]
    if not graph.sizes and not graph.n_more_sizes:
        return [f"{head}: not called yet"]
    lines = []
    for sizes in graph.sizes:
        label = f"{head}, {sizes.sizes}" if sizes.sizes else head
        lines.append(f"{label}: {'' if sizes.reason is None else f'PyTorch: {sizes.reason}'}")
        lines += [line for part in sizes.parts for line in _part_lines(part)]
        lines += [f"  {name}: PyTorch: {reason}" for name, reason in sizes.pytorch.items()]
    if graph.n_more_sizes:
        lines.append(f"{head}: PyTorch: {graph.n_more_sizes} calls of more sizes than the limit")
    return [line.rstrip() for line in lines]


def _part_lines(part: PartReport) -> list[str]:
    runs = "Felix" if part.is_tuned else "PyTorch"
    lines = [f"  {part.name}, {len(part.operators)} operators: {runs}: {part.reason}"]
    if part.is_tuned:
        lines += [
            f"    {each.group.name}: {each.contender}: {each.reason}" for each in part.groups
        ]
    return lines
