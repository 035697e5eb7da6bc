"""A part of a graph: Felix's network of it where that is known to be right and not slower.

The first call compares both on its inputs: Felix's outputs must agree with PyTorch's
(`felix.network.agreement`), and calls are timed.
"""

from __future__ import annotations

import abc
import dataclasses
import statistics
from collections.abc import Sequence
from typing import Any

import torch
from torch.utils import _python_dispatch as python_dispatch

from felix import errors
from felix.database import store
from felix.network import agreement, executable, in_turns
from felix.network.backend import partition, selection, settings, tracing, tuned_part
from felix.network.backend.report import PartReport
from felix.network.contenders import shipping
from felix.tir import grammar


class Runner(abc.ABC):
    """Runs a part, as the part's graph does.

    Attributes:
        report: what runs it and why; final after the first call.
    """

    report: PartReport

    def __init__(self, cut: partition.Cut) -> None:
        self._graph = cut.graph
        self._pytorch = tracing.forward(cut.graph)
        self._is_several = tracing.returns_several(cut.graph)

    @property
    @abc.abstractmethod
    def is_tuned(self) -> bool:
        """Whether Felix's network runs the part."""

    @abc.abstractmethod
    def outputs(self, inputs: Sequence[torch.Tensor]) -> Sequence[Any]:
        """The outputs of the part."""

    def __call__(self, *inputs: torch.Tensor) -> Any:
        """What the part's graph returns."""
        outputs = self.outputs(inputs)
        return outputs if self._is_several else outputs[0]

    def _by_pytorch(self, inputs: Sequence[torch.Tensor]) -> Sequence[Any]:
        outputs = self._pytorch(*inputs)
        return list(outputs) if self._is_several else [outputs]


class Part(Runner):
    """Runs a part by what is known of its groups."""

    def __init__(self, cut: partition.Cut, chosen: settings.Settings, known: store.Store) -> None:
        super().__init__(cut)
        self._never_slower = chosen.never_slower
        self._is_tf32 = False
        self._tuned: tuned_part.TunedPart | None = None
        self._is_compared = False
        #: what the network is made from, until it is compared
        self._source: tuple[partition.Cut, partition.PartProgram] | None = None
        self.report = PartReport(
            name=cut.name, operators=cut.operators, is_tuned=False, reason=str(cut.program)
        )
        if isinstance(cut.program, partition.PartProgram):
            self._build(cut, cut.program, chosen, known)

    @property
    def is_tuned(self) -> bool:
        """Whether Felix's network runs the part."""
        return self._tuned is not None

    def outputs(self, inputs: Sequence[torch.Tensor]) -> Sequence[Any]:
        """The outputs of the part."""
        if self._tuned is not None and not self._is_compared:
            self._compare(self._tuned, inputs)
            self._is_compared, self._source = True, None
        tuned = self._tuned
        if tuned is None or (not tuned.can_be_captured and executable.is_capturing()):
            return self._by_pytorch(inputs)
        if not tuned.follow(inputs):
            self._leave("its parameters change too often")
            return self._by_pytorch(inputs)
        return tuned(inputs)

    def _build(
        self,
        cut: partition.Cut,
        program: partition.PartProgram,
        chosen: settings.Settings,
        known: store.Store,
    ) -> None:
        choice = selection.select(program, known, allow_tf32=chosen.allow_tf32)
        if chosen.queue:
            store.enqueue(
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
                self._tuned = tuned_part.TunedPart(cut, program, choice.shipped)
                self._source = cut, program
            except (errors.FelixError, *grammar.TVM_ERRORS) as error:
                reason = f"its network cannot be built: {grammar.first_line(error)}"
        self._note(
            groups=choice.shipped,
            queued=[task.key for task, _ in choice.unknown] if chosen.queue else [],
            is_tuned=reason is None,
            reason=reason or _known(choice.shipped),
        )

    def _compare(self, candidate: tuned_part.TunedPart, inputs: Sequence[torch.Tensor]) -> None:
        """Decide by the inputs of one call who runs the part."""
        expected = self._by_pytorch(inputs)
        if (reason := candidate.unfit(inputs)) is not None:
            self._leave(reason)
            return
        try:
            actual = candidate(inputs)
        except grammar.TVM_ERRORS as error:
            self._leave(f"its network does not run: {grammar.first_line(error)}")
            return
        # the element types that the part works with, those of autocast inside it as well
        nodes = self._graph.graph.nodes
        dtypes = {each.dtype for node in nodes for each in partition.tensors(node)}
        limit = agreement.tolerance(dtypes, self._is_tf32)
        worst = max(agreement.differences(actual, expected, limit), default=0.0)
        if not worst <= limit:
            self._leave(f"its network differs from PyTorch: relative error {worst:.1e}")
        elif self._never_slower:
            self._time(candidate, inputs)

    def _time(self, candidate: tuned_part.TunedPart, inputs: Sequence[torch.Tensor]) -> None:
        """Time both in turns, without the modes in which PyTorch makes the first call."""
        with python_dispatch._disable_current_modes():
            timed = in_turns.latencies_us(
                {"felix": lambda: candidate(inputs), "pytorch": lambda: self._pytorch(*inputs)},
                "felix",
                is_gpu=any(each.is_cuda for each in inputs),
            )
        felix_us, pytorch_us = map(statistics.median, timed.values())
        self._note(felix_us=felix_us, pytorch_us=pytorch_us)
        ratio = in_turns.ratio(timed["felix"], timed["pytorch"])
        if ratio.median <= 1.0:
            return
        source, self._source = self._source, None
        moved = None if source is None else candidate.moved_back(*source, inputs)
        if moved is None:
            self._leave(f"it takes {pytorch_us:.1f} us, Felix's network {ratio}")
            return
        self._tuned = moved
        self._note(groups=moved.shipped)
        self._compare(moved, inputs)

    def _leave(self, reason: str) -> None:
        """PyTorch runs the part from now on."""
        self._tuned = None
        self._note(is_tuned=False, reason=reason)

    def _note(self, **changes: Any) -> None:
        self.report = dataclasses.replace(self.report, **changes)


def _known(shipped: Sequence[shipping.Shipped]) -> str:
    n_known = sum(each.is_known or bool(each.latencies_us) for each in shipped)
    return f"{n_known} of its {len(shipped)} groups are known"
