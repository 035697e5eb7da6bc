"""A graph of `torch._dynamo` and what runs it.

    graph -> functional graph (`tracing`) -> parts (`partition`)
          -> groups -> networks, compared with PyTorch by the first call (`part`)

A graph with dynamic sizes is built anew for each choice of them, up to a limit; more sizes run in
PyTorch. Where no part runs by Felix, the graph itself runs in PyTorch, not its functional form.
"""

from __future__ import annotations

import pathlib
import re
import weakref
from collections.abc import Sequence
from typing import Any

import torch
import tvm
from torch._dynamo import convert_frame

from felix import errors
from felix import target as targets
from felix.database import store
from felix.network import executable, group_costs, imported
from felix.network.backend import background, functional, part, settings, tracing
from felix.network.backend.report import GraphReport, SizesReport
from felix.tir import grammar

#: A frame of a stack as Python prints it.
_FRAME = re.compile(r'File "([^"]+)", line (\d+), in (\S+)')
_NOT_BUILT = "it is built in the background when no call runs"
_RANDOM = "it draws random numbers, which are built into calls alone: leave out the option seconds"


class CompiledGraph:
    """A graph as `torch.compile` calls it.

    Args:
        graph: of `torch._dynamo`.
        chosen: options.
        number: of the graph, for people.
        reason: why PyTorch runs it; None if Felix may.
        behind: where it is built if not by a call.
    """

    def __init__(
        self,
        graph: torch.fx.GraphModule,
        chosen: settings.Settings,
        number: int,
        reason: str | None = None,
        behind: background.Background | None = None,
    ) -> None:
        self._background = behind
        self._graph = graph
        self._pytorch = tracing.forward(graph)
        self._settings = chosen
        self._number = number
        self._reason = reason
        self._varying = _varying(graph)
        self._by_sizes: dict[Any, _Specialised] = {}
        self._n_more_sizes = 0
        #: for the only sizes that there are, once it is ready
        self._only: _Specialised | None = None

    def __call__(self, *args: Any) -> Any:
        """The graph's outputs."""
        only = self._only
        if only is not None and (self._background is None or not self._background.is_active):
            return only.call(*args)
        if self._background is not None and self._background.is_active:
            with self._background.call():
                return self._called(args)
        return self._called(args)

    def _called(self, args: Sequence[Any]) -> Any:
        if self._reason is not None:
            return self._pytorch(*args)
        key = tuple(_size(args[position]) for position in self._varying)
        specialised = self._by_sizes.get(key)
        if specialised is not None and specialised.is_ready:
            self._only = None if self._varying else specialised
            return specialised.call(*args)
        if executable.is_capturing():  # nothing may be built meanwhile
            return self._pytorch(*args)
        is_new = key not in self._by_sizes
        if is_new and len(self._by_sizes) == self._settings.max_sizes:
            self._n_more_sizes += 1
            return self._pytorch(*args)
        if self._background is None:
            with convert_frame.compile_lock:  # tracing changes what PyTorch's compiler looks at
                return self._of_sizes(key, args).first_call(args)
        if is_new:
            with convert_frame.compile_lock:
                self._of_sizes(key, args).build_later(self._background, args)
        with self._background.call():
            return self._pytorch(*args)

    def _of_sizes(self, key: Any, args: Sequence[Any]) -> _Specialised:
        if key not in self._by_sizes:
            self._by_sizes[key] = _Specialised(self._graph, self._settings, args)
        return self._by_sizes[key]

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
        self.call = self._traced = tracing.forward(graph)
        self.is_ready = False
        self._graph = graph
        self._settings = chosen
        self._functional: functional.FunctionalGraph | None = None
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
        result = self._traced(*args)
        self._settle()
        return result

    def build_later(self, behind: background.Background, args: Sequence[Any]) -> None:
        """Let the graph be built in the background, for copies of a call's inputs.

        It is traced here: tracing keeps the states of PyTorch's random numbers, and another
        thread would give back states from before this one's numbers. A graph that draws random
        numbers is PyTorch's: they would be other ones for later calls.
        """
        if self._reason is None:
            self._trace(args)
        if self._functional is not None and self._functional.draws_random:
            self._functional, self._reason = None, _RANDOM
        if self._functional is None:
            self._settle()
            return
        inputs = self._functional.inputs_of(lambda: self._traced(*tracing.copies_of(args)))
        here, is_inference = weakref.ref(self), torch.is_inference_mode_enabled()

        def build() -> Sequence[str]:
            made = here()
            with torch.inference_mode(is_inference), torch.no_grad():
                return [] if made is None else made._rebuild(inputs)

        behind.add(build, self._settings)

    def _rebuild(self, inputs: Sequence[Any]) -> Sequence[str]:
        """Run by what is known now; keys of the tasks of which nothing is."""
        assert self._functional is not None  # it was traced
        self._functional.rebuild(inputs)
        self._settle()
        return [key for each in self._functional.reports() for key in each.queued]

    def _settle(self) -> None:
        """What runs the graph is known: PyTorch, unless a part is tuned."""
        made = self._functional
        if made is None or not made.is_tuned:
            self.call = tracing.forward(self._graph)
        else:
            self.call = made.directly(self._graph) or self._traced
        self.is_ready = True

    def _trace(self, args: Sequence[Any]) -> None:
        try:
            full = targets.parse(self._settings.target or imported.default_target(args))
            self._traced = tracing.trace(self._graph, args, self._compiler(full, args))
        except errors.TargetError as error:
            self._reason = str(error)
        except tracing.ERRORS as error:
            self._reason = f"it cannot be traced: {grammar.first_line(error)}"

    def _compiler(self, full: tvm.target.Target, args: Sequence[Any]) -> tracing.Compiler:
        own_tensors = (*self._graph.parameters(), *self._graph.buffers())
        parameters = {id(each) for each in args if tracing.is_parameter(each)}
        parameters |= {id(each) for each in own_tensors}

        def compile_graph(graph: torch.fx.GraphModule) -> functional.FunctionalGraph:
            made = functional.FunctionalGraph(graph, parameters, full, self._runners)
            self._functional = made
            return made

        return compile_graph

    def _runners(self, full: tvm.target.Target) -> functional.Runners:
        known = store.Store(self._settings.known_results)
        grouping = group_costs.known_grouping(full, known, self._settings.allow_tf32)
        return grouping, lambda cut: part.Part(cut, self._settings, known)

    def report(self) -> SizesReport:
        made = self._functional
        return SizesReport(
            sizes=self._label,
            parts=() if made is None else made.reports(),
            pytorch={} if made is None else made.pytorch,
            reason=self._reason or (None if self.is_ready else _NOT_BUILT),
        )


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
