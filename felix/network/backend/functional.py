"""A functional graph whose parts run by Felix where they are known."""

from __future__ import annotations

import copy
import dataclasses
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import torch
import tvm

from felix import frontend
from felix.network.backend import part, partition, tracing
from felix.network.backend.report import PartReport

#: How operators are grouped, and what makes of a part what runs it.
Runners: TypeAlias = tuple[frontend.Grouping, Callable[[partition.Cut], part.Runner]]


@dataclasses.dataclass(frozen=True, slots=True)
class _Split:
    """A functional graph in parts.

    Attributes:
        run: the graph as a function of its inputs.
        parts: of it.
        pytorch: operators outside parts, with the reason.
        alone: `run` where the graph is one part and nothing else; None where it is not.
    """

    run: Callable[..., Any]
    parts: Sequence[part.Runner]
    pytorch: Mapping[str, str]
    alone: Callable[..., Sequence[Any]] | None = None


class _Inputs(Exception):
    """Carries the inputs of a call that is not made."""

    def __init__(self, inputs: Sequence[Any]) -> None:
        self.inputs = inputs


class FunctionalGraph:
    """Runs a functional graph; the first call builds its parts, unless `rebuild` did.

    Args:
        graph: the functional graph.
        parameters: of which inputs the values are those of every call, by their identities.
        full: what parts are lowered for.
        runners: are asked for when parts are built.
    """

    def __init__(
        self,
        graph: torch.fx.GraphModule,
        parameters: set[int],
        full: tvm.target.Target,
        runners: Callable[[tvm.target.Target], Runners],
    ) -> None:
        self._graph = graph
        self._split: _Split | None = None
        self._is_asked = False  # for the inputs alone
        self._parameters = parameters
        self._target = full
        self._runners = runners
        self._written = tracing.take_writes(graph)

    @property
    def is_tuned(self) -> bool:
        """Whether Felix runs a part."""
        return self._split is not None and any(each.is_tuned for each in self._split.parts)

    @property
    def draws_random(self) -> bool:
        """Whether an operator takes numbers of PyTorch's generators."""
        return any(
            torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())
            for node in self._graph.graph.nodes
        )

    @property
    def pytorch(self) -> Mapping[str, str]:
        """Operators outside parts, with the reason."""
        return {} if self._split is None else self._split.pytorch

    def reports(self) -> list[PartReport]:
        """Of the parts."""
        return [] if self._split is None else [each.report for each in self._split.parts]

    def __call__(self, args: list[Any]) -> Sequence[Any]:
        if self._is_asked:
            raise _Inputs(args)
        if self._split is None:
            self._split = self._in_parts(args)
        results = self._split.run(*args)
        if not self._written:
            return list(results)
        n_outputs = len(results) - len(self._written)
        for position, value in zip(self._written, results[n_outputs:], strict=True):
            args[position].copy_(value)
        return list(results[:n_outputs])

    def inputs_of(self, call: Callable[[], object]) -> Sequence[Any]:
        """What it would be passed by a call of the graph that it was made of; nothing runs."""
        self._is_asked = True
        try:
            call()
        except _Inputs as found:
            return found.inputs
        finally:
            self._is_asked = False
        raise AssertionError("the call runs the functional graph")

    def directly(self, of: torch.fx.GraphModule) -> Callable[..., Sequence[Any]] | None:
        """The graph that it was made of as a function of the same inputs, without what AOT
        autograd does around each call; None where that does something.

        It handles inputs that are written to, given twice, or numbers, outputs that are inputs,
        views, or given twice, and autocast.
        """
        outputs = tracing.results(of)
        is_plain = (
            not self._written
            and not torch._C._is_any_autocast_enabled()
            and _n_inputs(of) == _n_inputs(self._graph)
            and len(set(outputs)) == len(outputs) == len(tracing.results(self._graph))
        )
        return self._split.alone if is_plain and self._split is not None else None

    def rebuild(self, inputs: Sequence[Any]) -> None:
        """Run by what is known now; calls may come meanwhile.

        Parts are compared with PyTorch for these inputs, which nothing is written to.
        """
        split = self._in_parts(inputs)
        split.run(*inputs)
        self._split = split

    def _in_parts(self, args: Sequence[Any]) -> _Split:
        """Let parts run by Felix's networks where they are known."""
        graph = torch.fx.GraphModule(self._graph, copy.deepcopy(self._graph.graph))
        changing = tracing.changes_inputs(graph)
        if changing is not None:
            reason = "it changes a tensor in place: PyTorch runs the whole graph"
            return _Split(tracing.forward(graph), (), {changing: reason})
        tracing.separate_views(graph)
        bound = {
            position: value
            for position, value in enumerate(args)
            if id(value) in self._parameters
            and position not in self._written
            and not value.is_inference()  # else its changes cannot be noticed
        }
        grouping, runner_of = self._runners(self._target)
        cuts = partition.split(graph, bound, self._target, grouping)
        parts = [runner_of(cut) for cut in cuts.parts]
        for cut, built in zip(cuts.parts, parts, strict=True):
            cuts.graph.delete_submodule(cut.name)
            setattr(cuts.graph, cut.name, built)  # no module: its calls cost less
        alone = _alone(cuts.graph, parts[0]) if len(parts) == 1 else None
        return _Split(tracing.forward(cuts.graph), parts, dict(cuts.pytorch), alone)


def _n_inputs(graph: torch.fx.GraphModule) -> int:
    return len(graph.graph.find_nodes(op="placeholder"))


def _alone(
    graph: torch.fx.GraphModule, runner: part.Runner
) -> Callable[..., Sequence[Any]] | None:
    """What runs a graph that calls one part and does nothing else."""
    places = {node: place for place, node in enumerate(graph.graph.find_nodes(op="placeholder"))}
    (call,) = graph.graph.find_nodes(op="call_module")
    items = {each: each.args[1] for each in call.users if each.target is operator.getitem}
    if len(graph.graph.nodes) != len(places) + 1 + len(items) + 1:  # the output is one, too
        return None
    chosen, outputs = items or {call: 0}, tracing.results(graph)
    if not (places.keys() >= set(call.args) and chosen.keys() >= set(outputs)):
        return None
    taken: list[Any] = [places[each] for each in call.args]
    given: list[Any] = [chosen[each] for each in outputs]
    run = runner.outputs
    if given == list(range(len(chosen))):
        if taken == list(range(len(places))):
            return lambda *args: run(args)
        return lambda *args: run([args[each] for each in taken])

    def rearranged(*args: Any) -> Sequence[Any]:
        outputs = run([args[each] for each in taken])
        return [outputs[each] for each in given]

    return rearranged
