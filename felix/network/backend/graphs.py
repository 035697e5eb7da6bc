"""A graph of `torch._dynamo` and what runs it.

    graph -> functional graph (`tracing`) -> parts (`partition`)
          -> groups -> networks, compared with PyTorch by the first call (`part`)

A graph with dynamic sizes is built anew for each choice of them, up to a limit; more sizes run in
PyTorch. Where no part runs by Felix, the graph itself runs in PyTorch, not its functional form.
"""

from __future__ import annotations

import pathlib
import re
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
import tvm
from torch._dynamo import convert_frame

from felix import errors, frontend
from felix import target as targets
from felix.database import store
from felix.network import executable, group_costs, imported
from felix.network.backend import part, partition, settings, tracing
from felix.network.backend.report import GraphReport, PartReport, SizesReport
from felix.tir import grammar

#: A frame of a stack as Python prints it.
_FRAME = re.compile(r'File "([^"]+)", line (\d+), in (\S+)')
#: How operators are grouped, and what makes of a part what runs it.
Runners: TypeAlias = tuple[frontend.Grouping, Callable[[partition.Cut], part.Runner]]


class CompiledGraph:
    """A graph as `torch.compile` calls it.

    Args:
        graph: of `torch._dynamo`.
        chosen: options.
        number: of the graph, for people.
        reason: why PyTorch runs it; None if Felix may.
    """

    def __init__(
        self,
        graph: torch.fx.GraphModule,
        chosen: settings.Settings,
        number: int,
        reason: str | None = None,
    ) -> None:
        self._graph = graph
        self._settings = chosen
        self._number = number
        self._reason = reason
        self._varying = _varying(graph)
        self._by_sizes: dict[Any, _Specialised] = {}
        self._n_more_sizes = 0

    def __call__(self, *args: Any) -> Any:
        """The graph's outputs."""
        if self._reason is not None:
            return self._graph(*args)
        key = tuple(_size(args[position]) for position in self._varying)
        specialised = self._by_sizes.get(key)
        if specialised is not None and specialised.is_ready:
            return specialised.call(*args)
        if executable.is_capturing():  # nothing may be built meanwhile
            return self._graph(*args)
        with convert_frame.compile_lock:  # tracing changes what PyTorch's compiler looks at
            if key not in self._by_sizes:
                if len(self._by_sizes) == self._settings.max_sizes:
                    self._n_more_sizes += 1
                    return self._graph(*args)
                self._by_sizes[key] = _Specialised(self._graph, self._settings, args)
            return self._by_sizes[key].first_call(args)

    def report(self) -> GraphReport:
        """What runs the graph."""
        return GraphReport(
            number=self._number,
            name=_name(self._graph),
            sizes=[each.report() for each in self._by_sizes.values()],
            n_more_sizes=self._n_more_sizes,
            reason=self._reason,
        )


class _Specialised:
    """A graph for one choice of sizes.

    Attributes:
        call: runs it, once `is_ready`.
        is_ready: whether a first call has ended: its parts are built and compared.
    """

    def __init__(
        self, graph: torch.fx.GraphModule, chosen: settings.Settings, args: Sequence[Any]
    ) -> None:
        self.call: Callable[..., Any] = graph.forward
        self.is_ready = False
        self._graph = graph
        self._settings = chosen
        self._functional: FunctionalGraph | None = None
        self._reason = tracing.unfit(args)
        self._label = ", ".join(
            "x".join(map(str, each.shape)) or "scalar"
            for each in args
            if isinstance(each, torch.Tensor) and not tracing.is_parameter(each)
        )

    def first_call(self, args: Sequence[Any]) -> Any:
        """Build the graph and call it, in one thread at a time; later calls are `call`'s."""
        if self._reason is None and self._functional is None:
            self._trace(args)
        result = self.call(*args)
        if self._functional is not None and not self._functional.is_tuned:
            self.call = self._graph.forward
        self.is_ready = True
        return result

    def _trace(self, args: Sequence[Any]) -> None:
        try:
            full = targets.parse(self._settings.target or imported.default_target(args))
            self.call = tracing.trace(self._graph, args, self._compiler(full, args))
        except errors.TargetError as error:
            self._reason = str(error)
        except tracing.ERRORS as error:
            self._reason = f"it cannot be traced: {grammar.first_line(error)}"

    def _compiler(self, full: tvm.target.Target, args: Sequence[Any]) -> tracing.Compiler:
        own_tensors = (*self._graph.parameters(), *self._graph.buffers())
        parameters = {id(each) for each in args if tracing.is_parameter(each)}
        parameters |= {id(each) for each in own_tensors}

        def compile_graph(functional: torch.fx.GraphModule) -> FunctionalGraph:
            self._functional = FunctionalGraph(functional, parameters, full, self._runners)
            return self._functional

        return compile_graph

    def _runners(self, full: tvm.target.Target) -> Runners:
        known = store.Store(self._settings.known_results)
        grouping = group_costs.known_grouping(full, known, self._settings.allow_tf32)
        return grouping, lambda cut: part.Part(cut, self._settings, known)

    def report(self) -> SizesReport:
        functional = self._functional
        return SizesReport(
            sizes=self._label,
            parts=() if functional is None else functional.reports(),
            pytorch={} if functional is None else functional.pytorch,
            reason=self._reason,
        )


class FunctionalGraph:
    """Runs a functional graph; the first call builds its parts.

    Args:
        functional: the graph.
        parameters: of which inputs the values are those of every call, by their identities.
        full: what parts are lowered for.
        runners: are asked for at the first call.

    Attributes:
        pytorch: operators outside parts, with the reason.
    """

    def __init__(
        self,
        functional: torch.fx.GraphModule,
        parameters: set[int],
        full: tvm.target.Target,
        runners: Callable[[tvm.target.Target], Runners],
    ) -> None:
        self.pytorch: dict[str, str] = {}
        self._parts: list[part.Runner] = []
        self._graph = functional
        self._is_built = False
        self._parameters = parameters
        self._target = full
        self._runners = runners
        self._written = tracing.take_writes(functional)

    @property
    def is_tuned(self) -> bool:
        """Whether Felix runs a part."""
        return any(each.is_tuned for each in self._parts)

    def reports(self) -> list[PartReport]:
        return [each.report for each in self._parts]

    def __call__(self, args: list[Any]) -> Sequence[Any]:
        if not self._is_built:
            self._build(args)
            self._is_built = True
        results = self._graph(*args)
        if not self._written:
            return list(results)
        n_outputs = len(results) - len(self._written)
        for position, value in zip(self._written, results[n_outputs:], strict=True):
            args[position].copy_(value)
        return list(results[:n_outputs])

    def _build(self, args: Sequence[Any]) -> None:
        changing = tracing.changes_inputs(self._graph)
        if changing is not None:
            self.pytorch = {changing: "it changes a tensor in place: PyTorch runs the whole graph"}
            return
        tracing.separate_views(self._graph)
        bound = {
            position: value
            for position, value in enumerate(args)
            if id(value) in self._parameters
            and position not in self._written
            and not value.is_inference()  # else its changes cannot be noticed
        }
        grouping, runner_of = self._runners(self._target)
        cuts = partition.split(self._graph, bound, self._target, grouping)
        parts = [runner_of(cut) for cut in cuts.parts]
        for cut, built in zip(cuts.parts, parts, strict=True):
            cuts.graph.set_submodule(cut.name, built)
        self._graph, self.pytorch, self._parts = cuts.graph, dict(cuts.pytorch), parts


def _varying(graph: torch.fx.GraphModule) -> list[int]:
    """Positions of the inputs that are numbers, or tensors whose shapes vary."""
    positions = []
    for position, node in enumerate(graph.graph.find_nodes(op="placeholder")):
        value = node.meta.get("example_value")
        if isinstance(value, torch.Tensor):
            if any(isinstance(each, torch.SymInt) for each in (*value.shape, *_strides(value))):
                positions.append(position)
        else:
            positions.append(position)
    return positions


def _strides(value: torch.Tensor) -> tuple[Any, ...]:
    return value.stride() if value.layout == torch.strided else ()


def _size(value: Any) -> Any:
    """What identifies a varying input."""
    return (tuple(value.shape), value.stride()) if isinstance(value, torch.Tensor) else value


def _name(graph: torch.fx.GraphModule) -> str:
    """The function that a graph begins in, as "forward (net.py:12)"."""
    for node in graph.graph.nodes:
        frame = _FRAME.search(node.meta.get("stack_trace") or "")
        if frame is not None:
            file, line, function = frame.groups()
            return f"{function} ({pathlib.PurePath(file).name}:{line})"
    return "a function"
