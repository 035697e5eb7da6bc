"""What a program computes from its parameters and constants alone, computed once by PyTorch.

A network of windows makes its masks and its positions in every call. Their operators are rare
ones, which would have to be converted, compared with PyTorch and compiled, to give what PyTorch
gives here at once.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, InputSpec, TensorArgument
from torch.utils import _python_dispatch
from torch.utils import _pytree as pytree

from felix.frontend.pytorch import comparison
from felix.torch_calls import functions

#: A value with more elements is computed in each call, unless one of its operands has as many.
MOST_ELEMENTS = 1 << 20


@dataclasses.dataclass(frozen=True, slots=True)
class _Value:
    """What a node gives, and whether that is made of a parameter."""

    value: Any
    of_parameter: bool

    @property
    def n_elements(self) -> int:
        """Of its tensors."""
        leaves = pytree.tree_leaves(self.value)
        return sum(each.numel() for each in leaves if isinstance(each, torch.Tensor))


def compute(program: ExportedProgram) -> None:
    """Put values in the place of operators all of whose operands are parameters and constants.

    What is made of a parameter is a parameter, what is made of others is a constant. Views stay,
    and so do operators without operands: programs read through the one, and the other need no
    memory.
    """
    with _python_dispatch._disable_current_modes(), torch.no_grad():
        with functions.products_in("ieee"):
            values = _values(program)
    for node in list(_worth_having(program, values)):
        _put(program, node, values[node])
    program.graph.eliminate_dead_code()


def _given(program: ExportedProgram) -> Iterator[tuple[str, _Value]]:
    """The parameters, buffers and constants, by the names of their placeholders."""
    for spec in program.graph_signature.input_specs:
        if spec.kind is InputKind.PARAMETER:
            yield spec.arg.name, _Value(program.state_dict[spec.target].detach(), True)
        elif spec.kind in (InputKind.BUFFER, InputKind.CONSTANT_TENSOR):
            of_module = program.state_dict if spec.persistent else program.constants
            yield spec.arg.name, _Value(of_module[spec.target], False)


def _values(program: ExportedProgram) -> dict[torch.fx.Node, _Value]:
    """The values of nodes that depend on no input of a call."""
    given = dict(_given(program))
    values: dict[torch.fx.Node, _Value] = {}
    for node in program.graph.nodes:
        if node.op == "placeholder" and node.name in given:
            values[node] = given[node.name]
        elif _is_pure(node) and all(each in values for each in node.all_input_nodes):
            if (made := _called(node, values)) is not None:
                values[node] = made
    return values


def _is_pure(node: torch.fx.Node) -> bool:
    """Whether a node gives the same for the same operands, and no more."""
    target = node.target
    if target is operator.getitem:
        return True
    if not isinstance(target, torch._ops.OpOverload) or target.namespace != "aten":
        return False
    return not target._schema.is_mutable and torch.Tag.nondeterministic_seeded not in target.tags


def _called(node: torch.fx.Node, values: Mapping[torch.fx.Node, _Value]) -> _Value | None:
    """What a node gives, if that is not too large."""
    operands = [values[each] for each in node.all_input_nodes]
    most = max([MOST_ELEMENTS, *(each.n_elements for each in operands)])
    expected = pytree.tree_leaves(node.meta.get("val"))
    if not all(isinstance(each, torch.Tensor) for each in expected):
        return None
    if sum(each.numel() for each in expected) > most:
        return None
    args, kwargs = pytree.tree_map_only(
        torch.fx.Node, lambda each: values[each].value, (node.args, dict(node.kwargs))
    )
    call: Any = node.target
    try:
        return _Value(call(*args, **kwargs), any(each.of_parameter for each in operands))
    except comparison.REFUSALS:
        return None


def _worth_having(
    program: ExportedProgram, values: Mapping[torch.fx.Node, _Value]
) -> Iterator[torch.fx.Node]:
    """The operators whose values others read in a call, directly or through views."""
    read: set[torch.fx.Node] = set()
    for node in reversed(program.graph.nodes):
        is_read = node in read or any(
            user not in values and user.op == "call_function" for user in node.users
        )
        if node not in values or node.op == "placeholder" or not is_read:
            continue
        if not node.all_input_nodes:
            continue
        if _is_view(node, values):
            read.update(node.all_input_nodes)
        elif isinstance(values[node].value, torch.Tensor):
            yield node


def _is_view(node: torch.fx.Node, values: Mapping[torch.fx.Node, _Value]) -> bool:
    """Whether a node gives what an operand has in memory."""
    memory = _memory(values[node])
    return any(memory & _memory(values[each]) for each in node.all_input_nodes)


def _memory(value: _Value) -> set[int]:
    leaves = pytree.tree_leaves(value.value)
    return {each.untyped_storage().data_ptr() for each in leaves if isinstance(each, torch.Tensor)}


def _put(program: ExportedProgram, node: torch.fx.Node, value: _Value) -> None:
    """A placeholder with a value in the place of an operator."""
    first = program.graph.find_nodes(op="placeholder")[0]
    with program.graph.inserting_before(first):
        made = program.graph.placeholder(f"computed_{node.name}")
    made.meta.update(node.meta)
    argument = TensorArgument(name=made.name)
    tensor = value.value.contiguous()
    if value.of_parameter:
        spec = InputSpec(InputKind.PARAMETER, argument, made.name)
        program.state_dict[made.name] = tensor
    else:
        spec = InputSpec(InputKind.CONSTANT_TENSOR, argument, made.name)
        program.constants[made.name] = tensor
    program.graph_signature.input_specs.insert(0, spec)
    node.replace_all_uses_with(made, lambda user: user.op == "call_function")
