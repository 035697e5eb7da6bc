"""Which operator of a model, or which tuned program, is the first whose values differ.

The model is cut off behind one of its operators, imported, built without tuning and compared with
PyTorch or the judge; halving finds the first operator that differs. Where nothing differs without
tuning, a tuned program does. A search ends after `LIMIT_S`.
"""

from __future__ import annotations

import copy
import functools
import importlib
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from felix import errors
from felix.frontend.pytorch import export
from felix.network import agreement, assembly, imported

#: Seconds that looking for an operator may take.
LIMIT_S = 60.0


def explained(network: imported.Network, inputs: Sequence[torch.Tensor]) -> str:
    """A sentence about the first operator that differs on some inputs, behind a space; "" where
    nothing is known."""
    try:
        if network.model is not None:
            plain = assembly.untuned_outputs(network, inputs)
            expected = imported.outputs_on(network, inputs)
            if agreement.agree(plain, expected, network.tolerance):
                return " Without tuning they agree, so a tuned program differs."
            steps = _torch_steps(network, inputs)
        else:
            steps = _onnx_steps(network, inputs)
        found = first([step for _, step in steps])
    except errors.FelixError:
        return ""
    return "" if found is None else f" The first operator that differs is {steps[found][0]}."


def first(differs: Sequence[Callable[[], bool]]) -> int | None:
    """The first of some steps that differs, if the last one does; None where time is out.

    Those before are taken to agree, those behind to differ.
    """
    low, high = 0, len(differs) - 1
    end = time.perf_counter() + LIMIT_S
    while low < high:
        if time.perf_counter() > end:
            return None
        middle = (low + high) // 2
        if differs[middle]():
            high = middle
        else:
            low = middle + 1
    return high if high >= 0 else None


def _torch_steps(
    network: imported.Network, inputs: Sequence[torch.Tensor]
) -> list[tuple[str, Callable[[], bool]]]:
    """Each operator of a PyTorch model in words, and whether the model up to it differs."""
    assert network.model is not None
    args, kwargs = network.imported.calling.arguments_of(inputs)
    program = export.export(network.model, args, kwargs)
    whole: Any = program.module(check_guards=False)
    steps: list[tuple[str, Callable[[], bool]]] = []
    for node in whole.graph.nodes:
        if node.op == "call_function" and isinstance(node.meta.get("val"), torch.Tensor):
            cut = _cut_off(whole, node)
            steps.append(
                (_in_words(node), functools.partial(_differs, network, cut, args, kwargs))
            )
    return steps


def _onnx_steps(
    network: imported.Network, inputs: Sequence[torch.Tensor]
) -> list[tuple[str, Callable[[], bool]]]:
    """Each node of an ONNX file in words, and whether the file up to it differs."""
    if network.file is None:
        return []
    prefixes = importlib.import_module("felix.frontend.onnx.prefixes")
    specs, values, full = network.imported.inputs, network.values, network.target
    given = dict(zip((spec.name for spec in specs), inputs, strict=True))
    shapes = {spec.name: spec.shape for spec in specs if spec.shape is not None}

    def differs(content: Callable[[], bytes]) -> bool:
        read = imported.read(content(), (), given, full, shapes, values=values)
        return read.expected is not None and _is_off(read, read.expected)

    of_file = prefixes.of(network.file)
    return [(words, functools.partial(differs, content)) for words, content in of_file]


def _cut_off(whole: Any, node: torch.fx.Node) -> torch.nn.Module:
    """The module that returns the value of a node."""
    graph = torch.fx.Graph()
    values: dict[torch.fx.Node, torch.fx.Node] = {}
    for each in whole.graph.nodes:
        values[each] = graph.node_copy(each, values.__getitem__)
        if each is node:
            break
    graph.output((values[node],))
    codegen = copy.copy(whole.graph._codegen)
    one = pytree.tree_structure((None,))
    codegen.pytree_info = codegen.pytree_info._replace(out_spec=one)
    graph.set_codegen(codegen)
    graph.eliminate_dead_code()
    return torch.fx.GraphModule(whole, graph)


def _differs(network: imported.Network, cut: torch.nn.Module, args: Any, kwargs: Any) -> bool:
    read = imported.read(cut, args, kwargs, network.target)
    assert read.expected is not None  # a module's own
    return _is_off(read, read.expected)


def _is_off(read: imported.Network, expected: Sequence[torch.Tensor]) -> bool:
    return not agreement.agree(assembly.untuned_outputs(read), expected, read.tolerance)


def _in_words(node: torch.fx.Node) -> str:
    """An operator with its node's name, and the module that calls it."""
    modules = list((node.meta.get("nn_module_stack") or {}).values())
    path = str(modules[-1][0]).removeprefix("L['self'].") if modules else ""
    where = f" in {path}" if path and path != "L['self']" else ""
    return f"{node.target} ({node.name}{where})"
