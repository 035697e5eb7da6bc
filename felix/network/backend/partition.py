"""Parts of a functional graph: what TVM imports of it, in as few parts as its order allows.

A part is imported as a whole. If that fails, its operators are imported one by one; those that
fail alone stay in PyTorch and the graph is split again.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import tvm
from torch.fx.passes.infra import partitioner

from felix import errors, frontend
from felix.frontend import folding, imported
from felix.frontend.pytorch import export, graphs
from felix.network import imported as networks
from felix.network.backend import support

#: Of a node: its name in the graph that is split.
_NAME = "felix_name"
#: Characters of a reason.
_MAX_REASON = 200


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PartProgram:
    """A part as a lowered network.

    Attributes:
        raw: as it was imported: its parameters are the model's.
        folded: after folding.
        lowered: an IRModule whose "main" calls a PrimFunc for each group of operators.
        target: what it is lowered for.
    """

    raw: imported.ImportedModel
    folded: imported.ImportedModel
    lowered: tvm.IRModule
    target: tvm.target.Target


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """A part of a graph.

    Attributes:
        name: of the submodule that is the part.
        graph: its operators, which PyTorch can run.
        parameters: its inputs that are parameters, by position.
        program: the part imported and lowered, or why TVM cannot do that.
    """

    name: str
    graph: torch.fx.GraphModule
    parameters: Mapping[int, torch.Tensor]
    program: PartProgram | str

    @property
    def operators(self) -> list[str]:
        """Names of its operators."""
        return [
            support.label(node) for node in self.graph.graph.nodes if support.is_operator(node)
        ]


@dataclasses.dataclass(frozen=True, slots=True)
class SplitGraph:
    """A graph whose parts are submodules, and why its other operators are in none, by name."""

    graph: torch.fx.GraphModule
    parts: Sequence[Cut]
    pytorch: Mapping[str, str]


def split(
    functional: torch.fx.GraphModule,
    parameters: Mapping[int, torch.Tensor],
    target: tvm.target.Target,
    grouping: frontend.Grouping,
) -> SplitGraph:
    """Split a graph.

    Args:
        functional: the graph, which stays as it is.
        parameters: of its placeholders with these positions.
        target: what parts are lowered for.
        grouping: how operators of parts are grouped.
    """
    for node in functional.graph.nodes:
        node.meta[_NAME] = node.name
    refused: dict[str, str] = {}
    while True:
        judge = support.Support(networks.device_of(target), refused)
        result = _split(functional, parameters, target, judge, grouping)
        more: dict[str, str] = {}
        for part in result.parts:
            if isinstance(part.program, str):
                more.update(_refused(part.graph, target))
        if not more.keys() - refused.keys():
            return result
        refused.update(more)


def _split(
    functional: torch.fx.GraphModule,
    parameters: Mapping[int, torch.Tensor],
    target: tvm.target.Target,
    judge: support.Support,
    grouping: frontend.Grouping,
) -> SplitGraph:
    graph = _copied(functional)
    outside = {
        support.label(node): reason
        for node in graph.graph.nodes
        if support.is_operator(node) and (reason := judge.reason(node)) is not None
    }
    chooser = partitioner.CapabilityBasedPartitioner(
        graph, judge, allows_single_node_partition=True
    )
    graph = chooser.fuse_partitions(chooser.propose_partitions(), "part_")
    numbers = {
        node: number for number, node in enumerate(graph.graph.find_nodes(op="placeholder"))
    }
    parts = []
    for call in list(graph.graph.nodes):
        if call.op == "call_module":
            values = {
                position: parameters[numbers[source]]
                for position, source in enumerate(call.args)
                if numbers.get(source) in parameters
            }
            module: Any = graph.get_submodule(call.target)
            program = _program(module, values, target, grouping)
            parts.append(Cut(name=call.target, graph=module, parameters=values, program=program))
    return SplitGraph(graph, parts, outside)


def _copied(graph: torch.fx.GraphModule) -> torch.fx.GraphModule:
    copy = torch.fx.Graph()
    output = copy.graph_copy(graph.graph, {})
    copy.output(output)
    copy.eliminate_dead_code()
    return torch.fx.GraphModule(graph, copy)


def _program(
    graph: torch.fx.GraphModule,
    parameters: Mapping[int, torch.Tensor],
    target: tvm.target.Target,
    grouping: frontend.Grouping = frontend.Grouping(),  # noqa: B008 - a frozen value
) -> PartProgram | str:
    try:
        raw = graphs.read_graph(graph, parameters)
        folded = folding.fold(raw)
        lowered = frontend.lowered(folded, target, grouping)
    except errors.WorkloadError as error:
        return _short(str(error))
    return PartProgram(raw=raw, folded=folded, lowered=lowered, target=target)


def _short(text: str) -> str:
    """An error's message as a reason; TVM's may be a page."""
    text = text.removeprefix(export.MESSAGE)
    return text if len(text) <= _MAX_REASON else f"{text[:_MAX_REASON]}..."


def _refused(graph: torch.fx.GraphModule, target: tvm.target.Target) -> dict[str, str]:
    """Why operators of a part cannot be imported by themselves, by their names."""
    reasons: dict[str, str] = {}
    known: dict[str, str | None] = {}
    for node in graph.graph.nodes:
        if support.is_operator(node):
            text = _text(node)
            if text not in known:
                program = _program(_alone(node), {}, target)
                known[text] = program if isinstance(program, str) else None
            reason = known[text]
            if reason is not None:
                reasons[node.meta[_NAME]] = reason
    return reasons


def _text(node: torch.fx.Node) -> str:
    """Equal for nodes that differ in the values of tensors alone."""

    def described(operand: torch.fx.Node) -> str:
        value = operand.meta["val"]
        return f"{value.dtype}{tuple(value.shape)}"

    operands = torch.fx.map_arg((node.args, node.kwargs), described)
    return f"{node.target} {operands}"


def _alone(node: torch.fx.Node) -> torch.fx.GraphModule:
    """A graph with one operator."""
    graph = torch.fx.Graph()
    inputs: dict[torch.fx.Node, torch.fx.Node] = {}
    for number, operand in enumerate(node.all_input_nodes):
        inputs[operand] = graph.placeholder(f"x{number}")
        inputs[operand].meta["val"] = operand.meta["val"]
    call = graph.node_copy(node, lambda operand: inputs[operand])
    value = node.meta["val"]
    if isinstance(value, torch.Tensor):
        graph.output((call,))
    else:
        results = sorted({int(user.args[1]) for user in node.users})  # type: ignore[arg-type]
        items = [graph.call_function(operator.getitem, (call, index)) for index in results]
        graph.output(tuple(items))
    return torch.fx.GraphModule({}, graph)
