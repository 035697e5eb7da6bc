"""From a graph of `torch._dynamo` to a functional graph of ATen operators, for given inputs.

AOT autograd makes graphs functional and takes care of inputs that are changed, of views among
outputs and of autocast. Operators that exporting leaves whole (`felix.frontend.pytorch.export`)
are left whole here, so that tasks are those of `felix.optimize`, and no operator is decomposed
that PyTorch may run.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from torch._functorch import aot_autograd
from torch.fx._lazy_graph_module import _LazyGraphModule
from torch.utils import _python_dispatch as python_dispatch

from felix.frontend.pytorch import export, importer

#: What torch raises for graphs that it cannot trace.
ERRORS = export.EXPORT_ERRORS
_aten = torch.ops.aten
#: Of a node: why PyTorch must run it.
PYTORCH = "felix_pytorch"
#: Makes of a functional graph what runs it: a function of a list of tensors.
Compiler: TypeAlias = Callable[[torch.fx.GraphModule], Callable[[list[Any]], Sequence[Any]]]


def computes_gradients(graph: torch.fx.GraphModule) -> bool:
    """Whether a result of a graph of `torch._dynamo` has a gradient."""
    if not torch.is_grad_enabled():
        return False
    (output,) = graph.graph.find_nodes(op="output")
    values = [node.meta.get("example_value") for node in output.all_input_nodes]
    return any(isinstance(each, torch.Tensor) and each.requires_grad for each in values)


def forward(graph: torch.fx.GraphModule) -> Callable[..., Any]:
    """What runs a graph, without what its class does around it; it is compiled if it was not."""
    _LazyGraphModule.force_recompile(graph)
    return graph.forward


def results(graph: torch.fx.GraphModule) -> list[Any]:
    """The nodes that a graph returns."""
    (output,) = graph.graph.find_nodes(op="output")
    return list(output.args[0]) if returns_several(graph) else [output.args[0]]


def returns_several(graph: torch.fx.GraphModule) -> bool:
    """Whether a graph returns a tuple."""
    (output,) = graph.graph.find_nodes(op="output")
    return isinstance(output.args[0], tuple | list)


def is_parameter(value: Any) -> bool:
    """Whether an input of a graph is a parameter or buffer of a module."""
    if isinstance(value, torch.nn.Parameter):
        return True
    return isinstance(value, torch.Tensor) and hasattr(value, "_dynamo_static_input_type")


def copies_of(args: Sequence[Any]) -> list[Any]:
    """Inputs with memory of their own, laid out and shared as it is; parameters are themselves."""
    seen: dict[int, Any] = {}

    def copied(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or is_parameter(value):
            return value
        made = copy.deepcopy(value.detach(), seen)
        return made.requires_grad_(value.requires_grad)

    return [copied(each) for each in args]


def unfit(args: Sequence[Any]) -> str | None:
    """Why a graph with these inputs runs in PyTorch; None if it may be traced."""
    for each in args:
        if isinstance(each, torch.Tensor):
            if python_dispatch.is_traceable_wrapper_subclass(each):
                return f"an input is a {type(each).__name__}"
        elif not isinstance(each, bool | int | float):
            return f"an input is of the type {type(each).__name__}"
    return None


def trace(
    graph: torch.fx.GraphModule, args: Sequence[Any], compiler: Compiler
) -> Callable[..., Any]:
    """The graph as a function of its inputs, whose functional form a compiler runs.

    Args:
        graph: of `torch._dynamo`.
        args: inputs; numbers among them become constants.
        compiler: gets the functional graph. Its first placeholders are the graph's own tensors,
            then those of the inputs.
    """
    with importer.whole_operators():
        return aot_autograd.aot_module_simplified(
            graph,
            list(args),
            fw_compiler=lambda functional, fakes: _boxed(lambda each: functional(*each)),
            bw_compiler=lambda functional, fakes: _boxed(lambda each: functional(*each)),
            inference_compiler=lambda functional, fakes: _boxed(compiler(functional)),
            keep_inference_input_mutations=True,
        )


def _boxed(call: Callable[[list[Any]], Sequence[Any]]) -> Any:
    """A function that AOT autograd passes a list, which may be emptied."""

    def run(args: list[Any]) -> Sequence[Any]:
        return call(args)

    run._boxed_call = True  # type: ignore[attr-defined]
    return run


def take_writes(functional: torch.fx.GraphModule) -> list[int]:
    """Move what a graph writes to its inputs out of it; the positions of those inputs.

    The values to write become the last outputs, in this order.
    """
    placeholders = functional.graph.find_nodes(op="placeholder")
    positions = {node: position for position, node in enumerate(placeholders)}
    (output,) = functional.graph.find_nodes(op="output")
    written: list[int] = []
    values: list[Any] = []
    for node in functional.graph.find_nodes(op="call_function", target=_aten.copy_.default):
        place, value = node.args[:2]
        if place not in positions:
            continue
        written.append(positions[place])
        values.append(value)
        node.replace_all_uses_with(value)
        functional.graph.erase_node(node)
    output.args = ((*output.args[0], *values),)
    functional.recompile()
    return written


def separate_views(functional: torch.fx.GraphModule) -> None:
    """Let views among the results be made by operators of their own, which PyTorch must run.

    They share memory with what they are views of, which a program's results never do.
    """
    (output,) = functional.graph.find_nodes(op="output")
    copies: dict[torch.fx.Node, torch.fx.Node] = {}

    def separated(node: torch.fx.Node) -> torch.fx.Node:
        if not _is_view(node):
            return node
        if node not in copies:
            with functional.graph.inserting_before(output):
                copies[node] = functional.graph.node_copy(node, separated)
            copies[node].meta[PYTORCH] = "it is a view among the results"
        return copies[node]

    output.args = (torch.fx.map_arg(output.args[0], separated),)
    functional.graph.eliminate_dead_code()
    functional.recompile()


def _is_view(node: torch.fx.Node) -> bool:
    """Whether an operator's result shares memory with its first operand."""
    if node.op != "call_function":
        return False
    if node.target is operator.getitem:
        (source, _) = node.args
        return isinstance(source, torch.fx.Node) and _is_view(source)
    if not isinstance(node.target, torch._ops.OpOverload):
        return False
    return any(each.alias_info is not None for each in node.target._schema.returns)


def changes_inputs(functional: torch.fx.GraphModule) -> str | None:
    """The operator that changes a tensor in place in a graph without its writes; None: none does.

    Parts could run before or after it.
    """
    for node in functional.graph.nodes:
        if node.op == "call_function" and isinstance(node.target, torch._ops.OpOverload):
            if node.target._schema.is_mutable:
                return str(node.target)
    return None
