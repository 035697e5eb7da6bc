"""Parts of a functional graph: what TVM imports of it, in as few parts as its order allows.

A part is imported as a whole. If that fails, its operators are imported one by one; those that
fail alone stay in PyTorch and the graph is split again.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
import tvm
from torch.fx.passes import operator_support
from torch.fx.passes.infra import partitioner

from felix import errors, frontend
from felix.frontend import folding, imported
from felix.frontend.pytorch import comparison, export, importer
from felix.network import imported as networks
from felix.network.backend import tracing

# Which operators of a graph Felix may run: the others stay PyTorch's, with the reason.

#: Operators whose results data or chance decide.
_TAGS = (
    torch.Tag.nondeterministic_seeded,
    torch.Tag.dynamic_output_shape,
    torch.Tag.data_dependent_output,
)

#: Why those are PyTorch's.
BY_CHANCE = "its result depends on chance, or its shape on data"
#: Operators that importing refuses unless their dropout is 0.
_WITHOUT_DROPOUT = frozenset({torch.ops.aten.scaled_dot_product_attention.default})
#: Element types of indices.
_INDICES = frozenset({torch.int64, torch.int32})
#: Operators whose results are whatever their memory had.
_WITHOUT_VALUES = frozenset(
    "empty empty_like empty_permuted empty_strided new_empty new_empty_strided".split()
)
#: Pooling whose seventh operand replaces the number of elements.
_AVERAGES = frozenset({"avg_pool2d.default", "avg_pool3d.default"})
#: Operators of whose results importing gives the first one alone.
_FIRST_RESULT = comparison.FIRST_CONFIRMED | {"native_layer_norm.default"}


class Support(operator_support.OperatorSupportBase):
    """Judges the nodes of a graph; a support of `CapabilityBasedPartitioner`.

    Args:
        device: PyTorch's kind of device that programs run on.
        refused: reasons for nodes that importing refused, by the nodes' names.
    """

    def __init__(self, device: str, refused: Mapping[str, str]) -> None:
        self._device = device
        self._refused = refused

    def is_node_supported(self, submodules: Mapping[str, torch.nn.Module], node: Any) -> bool:
        """Whether a node may be in a part."""
        return node.op == "call_function" and self.reason(node) is None

    def reason(self, node: torch.fx.Node) -> str | None:
        """Why an operator runs in PyTorch; None if it may be in a part."""
        if tracing.PYTORCH in node.meta:
            return str(node.meta[tracing.PYTORCH])
        if node.target is operator.getitem:
            (source, _) = node.args
            assert isinstance(source, torch.fx.Node)
            is_call = source.op == "call_function"
            return self.reason(source) if is_call else "it is no operator"
        if node.name in self._refused:
            return self._refused[node.name]
        target = node.target
        if not isinstance(target, torch._ops.OpOverload):
            return "it is no operator of ATen"
        if target._schema.is_mutable:
            return "it changes a tensor in place"
        if not _is_fixed(node) and any(tag in target.tags for tag in _TAGS):
            return BY_CHANCE
        if target.overloadpacket.__name__ in _WITHOUT_VALUES:
            return "its result has no values yet"
        if target.__name__ not in importer.convertible():
            return "TVM does not import it"
        if target.__name__ in _AVERAGES and len(node.args) > 6 and node.args[6] is not None:
            return "TVM does not take its divisor"
        if target.__name__ in _FIRST_RESULT and any(user.args[1] != 0 for user in _items(node)):
            return "TVM does not give all its results"
        return next((text for each in tensors(node) if (text := self._unfit(each))), None)

    def _unfit(self, value: torch.Tensor) -> str | None:
        """Why programs cannot work on a tensor."""
        if value.device.type != self._device:
            return f"it works on {value.device.type}, the target on {self._device}"
        if value.device.index:
            return f"it works on {value.device}, programs run on {self._device}:0"
        if value.layout != torch.strided:
            return f"a tensor is {value.layout}"
        if value.dtype not in export.DTYPES:
            return f"a tensor is {value.dtype}"
        return None if value.numel() else "a tensor is empty"


def _is_fixed(node: torch.fx.Node) -> bool:
    """Whether what an operator's tags warn of does not depend on more than its operands say."""
    if node.target is torch.ops.aten.index.Tensor:  # masks decide the shape
        chosen: Any = node.args[1]
        return all(each is None or each.meta["val"].dtype in _INDICES for each in chosen)
    return node.target in _WITHOUT_DROPOUT


def tensors(node: torch.fx.Node) -> Iterator[torch.Tensor]:
    """The (fake) tensors that a node reads, and those of its results that others read."""
    for each in (*node.all_input_nodes, *(_items(node) or [node])):
        value = each.meta.get("val")
        for leaf in value if isinstance(value, tuple | list) else (value,):
            if isinstance(leaf, torch.Tensor):
                yield leaf


def _items(node: torch.fx.Node) -> list[torch.fx.Node]:
    """The nodes that choose one of several results."""
    return [user for user in node.users if user.target is operator.getitem]


def is_operator(node: torch.fx.Node) -> bool:
    """Whether a node is an operator, and no choice of one of several results."""
    return node.op == "call_function" and node.target is not operator.getitem


def label(node: torch.fx.Node) -> str:
    """An operator's name, for people."""
    return str(node.target) if isinstance(node.target, torch._ops.OpOverload) else node.name


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
        return [label(node) for node in self.graph.graph.nodes if is_operator(node)]


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
        judge = Support(networks.device_of(target), refused)
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
    judge: Support,
    grouping: frontend.Grouping,
) -> SplitGraph:
    graph = _copied(functional)
    outside = {
        label(node): reason
        for node in graph.graph.nodes
        if is_operator(node) and (reason := judge.reason(node)) is not None
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
        raw = importer.read_graph(graph, parameters)
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
        if is_operator(node):
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
