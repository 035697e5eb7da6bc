"""What `optimize` says of a network: its groups, what ships of each and why, and the totals."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping, Sequence
from typing import Any

from felix.network.attentions import whole
from felix.network.contenders import shipping
from felix.network.contenders.shipping import Contender

_WIDTH = 44


class RunBy(enum.StrEnum):
    """What runs a network's calls."""

    FELIX = "felix"
    PYTORCH = "pytorch"
    UNTUNED = "untuned"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Latencies of whole calls by wall clock: medians, with warm caches, in turns, in us; of the
    first call where there was no time for more.

    `network_us` is that of the network that was built. `model_us` is the model's in PyTorch eager
    mode, `graph_us` the same in a CUDA graph; None of an ONNX file, and where there is no graph.
    """

    network_us: float
    model_us: float | None
    repeats: int
    graph_us: float | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What ships of a network; `print` shows it.

    Attributes:
        network: the model's name.
        target: what it is built for.
        groups: every group, the largest first.
        n_compared: groups whose contenders were timed side by side now; the others' were known.
        reason: why tuning ended ("trials", "seconds", ...); None if nothing had to be tuned.
        tuning_s: seconds that tuning took.
        curve: while tuning, (seconds since the call, what the groups took by then in us): the sum
            of calls with cold caches, of PyTorch's operators or the best program of each.
        max_error: largest difference of the outputs from the model's, relative to the
            root mean square of each output; None if it was not run here.
        calls: what runs a call: "one CUDA graph" and what its branches gain, or TVM's virtual
            machine and why there is no graph.
        attentions: attentions that were compared with PyTorch's operator as a whole. Where it
            ships their groups have the calls that are left.
        pytorch: operators that TVM does not convert, which PyTorch runs, and their calls.
        judged_by: with what an ONNX file's outputs were compared, or why with nothing but the
            untuned network.
        unchecked: what was not compared with the model, and why.
        timing: of whole calls; None if it was not run here.
        runs: what runs the calls. Where that is PyTorch the groups are those of the artifact.
        why: this is so; "" if it was compared with nothing.
    """

    network: str
    target: str
    groups: Sequence[shipping.Shipped]
    reason: str | None
    tuning_s: float
    calls: str
    n_compared: int = 0
    max_error: float | None = None
    timing: Timing | None = None
    curve: Sequence[tuple[float, float]] = ()
    attentions: Sequence[whole.Whole] = ()
    pytorch: Mapping[str, int] = dataclasses.field(default_factory=dict)
    judged_by: str | None = None
    unchecked: Sequence[str] = ()
    runs: RunBy = RunBy.FELIX
    why: str = ""

    @property
    def call_us(self) -> float | None:
        """Latency of a whole call as it is returned, None if it was not run here."""
        if self.timing is None:
            return None
        own = (self.timing.model_us, self.timing.graph_us)
        known = [each for each in own if each is not None]
        return min(known) if self.runs is RunBy.PYTORCH else self.timing.network_us

    @property
    def latency_us(self) -> float | None:
        """Sum of calls x latency of what ships; None if a group was not measured, or without
        groups."""
        if not self.groups:
            return None
        total = 0.0
        for each in self.groups:
            if each.latency_us is None:
                return None
            total += each.group.calls * each.latency_us
        return total + sum(
            each.calls * each.latencies_us[each.contender]
            for each in self.attentions
            if each.ships
        )

    @property
    def untuned(self) -> list[shipping.Shipped]:
        """The groups that Felix has no program for."""
        return [each for each in self.groups if each.untuned is not None]

    def to_json(self) -> dict[str, Any]:
        """The report as JSON."""
        return {
            "network": self.network,
            "target": self.target,
            "reason": self.reason,
            "tuning_s": self.tuning_s,
            "n_compared": self.n_compared,
            "max_error": self.max_error,
            "judged_by": self.judged_by,
            "unchecked": list(self.unchecked),
            "calls": self.calls,
            "latency_us": self.latency_us,
            "runs": str(self.runs),
            "why": self.why,
            "call_us": self.call_us,
            "curve": [list(point) for point in self.curve],
            "timing": None if self.timing is None else dataclasses.asdict(self.timing),
            "groups": [_group_json(each) for each in self.groups],
            "pytorch": dict(self.pytorch),
            "attentions": [_attention_json(each) for each in self.attentions],
        }

    def __str__(self) -> str:
        rows = [_HEAD, *map(_row, self.groups), *map(_attention_row, self.attentions)]
        widths = [max(len(row[column]) for row in rows) for column in range(len(_HEAD))]
        lines = [f"{self.network} for {self.target}: {len(self.groups)} groups"]
        for row in rows:
            cells = [row[0].ljust(widths[0])]
            cells += [
                cell.rjust(width) for cell, width in zip(row[1:-1], widths[1:-1], strict=True)
            ]
            lines.append("  ".join([*cells, row[-1]]).rstrip())
        return "\n".join([*lines, *self._totals(), *self._notes()])

    def _totals(self) -> list[str]:
        lines = [f"a call runs: {self.calls}"]
        if self.max_error is not None:
            lines.insert(0, f"largest error: {self.max_error:.1e}")
        if self.latency_us is not None:
            lines.insert(0, f"sum of the groups, cold caches: {self.latency_us:.1f} us")
        if self.timing is not None:
            eager, graph = self.timing.model_us, self.timing.graph_us
            beside = "" if eager is None else f" (PyTorch eager: {eager:.1f} us"
            beside += "" if graph is None else f", in a CUDA graph: {graph:.1f} us"
            beside += ")" if beside else ""
            lines.insert(0, f"a call, warm caches: {self.timing.network_us:.1f} us{beside}")
        if self.runs is not RunBy.FELIX:
            who = "PyTorch runs the model" if self.runs is RunBy.PYTORCH else "it runs untuned"
            lines.insert(0, f"{who}: {self.why}")
        elif self.why:
            lines.append(f"timed in turns: {self.why}")
        return lines

    def _notes(self) -> list[str]:
        notes = [
            f"runs in PyTorch: {name}: TVM does not import it (calls: {calls})"
            for name, calls in self.pytorch.items()
        ]
        notes += [f"untuned: {each.group.name}: {each.untuned}" for each in self.untuned]
        notes += [
            f"computed in another way: {each.group.name}: {each.group.rewriting}"
            for each in self.groups
            if each.group.rewriting is not None
        ]
        notes += [
            f"left out: {each.group.name}: {reason}"
            for each in self.groups
            for reason in each.wrong.values()
        ]
        notes += [f"left out: {why}" for each in self.attentions for why in each.wrong.values()]
        if self.judged_by is not None:
            notes.append(f"outputs checked against: {self.judged_by}")
        notes += [f"not checked: {each}" for each in self.unchecked]
        if self.reason is None:
            known = "nothing was measured" if not self.n_compared else "nothing was tuned"
            notes.append(f"everything was known: {known}")
        else:
            notes.append(f"tuning ended after {self.tuning_s:.0f} s: {self.reason}")
        if self.n_compared:
            notes.append(f"contenders timed side by side: of {self.n_compared} groups")
        return notes


_HEAD = ("group", "calls", "felix us", "tvm us", "pytorch us", "ships", "why")


def _row(each: shipping.Shipped) -> tuple[str, ...]:
    name = each.group.name
    label = name if len(name) <= _WIDTH else f"{name[: _WIDTH - 3]}..."
    calls, latencies = str(each.group.calls), _latencies(each.latencies_us)
    return label, calls, *latencies, str(each.contender), each.reason


def _attention_row(each: whole.Whole) -> tuple[str, ...]:
    """Whole attentions below the groups: their programs' latency is in Felix's column."""
    ships = "pytorch" if each.ships else "its groups"
    latencies = _latencies(each.latencies_us)
    return "attention as a whole", str(each.calls), *latencies, ships, each.reason


def _latencies(latencies_us: Mapping[Contender, float]) -> list[str]:
    known = (latencies_us.get(contender) for contender in Contender)
    return ["-" if value is None else f"{value:.2f}" for value in known]


def _attention_json(each: whole.Whole) -> dict[str, Any]:
    names = {Contender.FELIX: "groups", Contender.PYTORCH: "pytorch"}
    return {
        "calls": each.calls,
        "groups": list(each.groups),
        "functions": [form.functions for form in each.forms],
        "ships": "pytorch" if each.ships else "groups",
        "reason": each.reason,
        "latencies_us": {names[name]: us for name, us in each.latencies_us.items()},
        "wrong": {names[name]: reason for name, reason in each.wrong.items()},
    }


def _group_json(each: shipping.Shipped) -> dict[str, Any]:
    return {
        "name": each.group.name,
        "symbols": list(each.group.symbols),
        "calls": each.group.calls,
        "rewriting": each.group.rewriting,
        "ships": str(each.contender),
        "reason": each.reason,
        "latencies_us": {str(name): value for name, value in each.latencies_us.items()},
        "untuned": each.untuned,
        "without_pytorch": each.without_pytorch,
        "wrong": {str(name): reason for name, reason in each.wrong.items()},
        "known": each.is_known,
        "trials": 0 if each.outcome is None else each.outcome.n_trials,
    }
