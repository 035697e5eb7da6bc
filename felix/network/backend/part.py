"""A part of a graph: Felix's network of it where that is known to be right and not slower.

The first call compares both on its inputs: Felix's outputs must agree with PyTorch's
(`felix.network.agreement`), and calls are timed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch

from felix import errors
from felix.known_results import queue, store
from felix.network import agreement, executable, optimized
from felix.network.backend import partition, selection, settings, support, tuned
from felix.network.backend.report import PartReport
from felix.network.contenders import shipping
from felix.tir import grammar

#: Turns in which a part is timed, and calls in a turn, each of Felix and PyTorch.
TURNS, REPEATS = 3, 10


class Part(torch.nn.Module):
    """Runs a part.

    Attributes:
        report: what runs it and why; final after the first call.
    """

    def __init__(self, cut: partition.Cut, chosen: settings.Settings, known: store.Store) -> None:
        super().__init__()
        self._graph = cut.graph
        self._never_slower = chosen.never_slower
        self._is_tf32 = False
        self._tuned: tuned.TunedPart | None = None
        self._is_compared = False
        self.report = PartReport(
            name=cut.name, operators=cut.operators, is_tuned=False, reason=str(cut.program)
        )
        if isinstance(cut.program, partition.PartProgram):
            self._build(cut, cut.program, chosen, known)

    @property
    def is_tuned(self) -> bool:
        """Whether Felix's network runs the part."""
        return self._tuned is not None

    def forward(self, *inputs: torch.Tensor) -> Any:
        """The outputs of the part."""
        if self._tuned is not None and not self._is_compared:
            self._compare(self._tuned, inputs)
            self._is_compared = True
        runs = self._tuned
        if runs is not None and not runs.can_be_captured and executable.is_capturing():
            return self._graph(*inputs)
        if runs is not None and not runs.follow(inputs):
            runs = None
            self._leave("its parameters change too often")
        if runs is None:
            return self._graph(*inputs)
        return _as_returned(self._graph, runs(inputs))

    def _build(
        self,
        cut: partition.Cut,
        program: partition.PartProgram,
        chosen: settings.Settings,
        known: store.Store,
    ) -> None:
        choice = selection.select(program, known, allow_tf32=chosen.allow_tf32)
        if chosen.queue:
            queue.add(
                known,
                [
                    (task, None if form is None else form.to_json())
                    for task, form in choice.unknown
                ],
            )
        self._is_tf32 = any(
            each.group.task is not None and each.group.task.allows_tf32 for each in choice.shipped
        )
        reason = choice.reason_for_pytorch
        if reason is None:
            try:
                self._tuned = tuned.TunedPart(
                    program, choice.shipped, cut.parameters, _outputs(cut.graph)
                )
            except (errors.FelixError, *grammar.TVM_ERRORS) as error:
                reason = f"its network cannot be built: {grammar.first_line(error)}"
        self._note(
            groups=choice.shipped,
            n_queued=len(choice.unknown) if chosen.queue else 0,
            is_tuned=reason is None,
            reason=reason or _known(choice.shipped),
        )

    def _compare(self, candidate: tuned.TunedPart, inputs: Sequence[torch.Tensor]) -> None:
        """Decide by the inputs of one call who runs the part."""
        expected = _flat(self._graph(*inputs))
        try:
            actual = candidate(inputs)
        except grammar.TVM_ERRORS as error:
            self._leave(f"its network does not run: {grammar.first_line(error)}")
            return
        limit = agreement.tolerance(_dtypes(self._graph), self._is_tf32)
        pairs = zip(actual, expected, strict=True)
        differences = (agreement.difference(*pair, is_exact=limit == 0) for pair in pairs)
        worst = max(differences, default=0.0)
        if not worst <= limit:
            self._leave(f"its network differs from PyTorch: relative error {worst:.1e}")
        elif self._never_slower:
            self._time(candidate, inputs)

    def _time(self, candidate: tuned.TunedPart, inputs: Sequence[torch.Tensor]) -> None:
        """Time both in turns; the best turn counts, so that a busy moment decides nothing."""
        calls = {"felix": lambda: candidate(inputs), "pytorch": lambda: self._graph(*inputs)}
        turns = [
            {name: optimized.median_us(call, inputs, REPEATS) for name, call in calls.items()}
            for _ in range(TURNS)
        ]
        felix_us, pytorch_us = (min(turn[name] for turn in turns) for name in calls)
        self._note(felix_us=felix_us, pytorch_us=pytorch_us)
        if felix_us > (1 + shipping.TIE) * pytorch_us:
            self._leave(f"it takes {pytorch_us:.1f} us, Felix's network {felix_us:.1f} us")

    def _leave(self, reason: str) -> None:
        """PyTorch runs the part from now on."""
        self._tuned = None
        self._note(is_tuned=False, reason=reason)

    def _note(self, **changes: Any) -> None:
        self.report = dataclasses.replace(self.report, **changes)


def _known(shipped: Sequence[shipping.Shipped]) -> str:
    n_known = sum(each.is_known for each in shipped)
    return f"{n_known} of its {len(shipped)} groups are known"


def _outputs(graph: torch.fx.GraphModule) -> list[torch.Tensor]:
    """The (fake) outputs of a part."""
    (output,) = graph.graph.find_nodes(op="output")
    return [node.meta["val"] for node in _flat(output.args[0])]


def _dtypes(graph: torch.fx.GraphModule) -> set[torch.dtype]:
    """The element types that a part works with, those of autocast inside it as well."""
    return {each.dtype for node in graph.graph.nodes for each in support.tensors(node)}


def _flat(outputs: Any) -> list[Any]:
    return list(outputs) if isinstance(outputs, tuple | list) else [outputs]


def _as_returned(graph: torch.fx.GraphModule, outputs: list[torch.Tensor]) -> Any:
    """Outputs as the part returns them: one by itself."""
    (output,) = graph.graph.find_nodes(op="output")
    return tuple(outputs) if isinstance(output.args[0], tuple | list) else outputs[0]
