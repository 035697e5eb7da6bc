"""Which operators of a graph Felix may run: the others stay PyTorch's, with the reason."""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.fx.passes import operator_support

from felix.frontend.pytorch import export, graphs
from felix.network.backend import tracing

#: Operators whose results data or chance decide.
_TAGS = (
    torch.Tag.nondeterministic_seeded,
    torch.Tag.dynamic_output_shape,
    torch.Tag.data_dependent_output,
)

#: Operators that importing refuses unless their dropout is 0.
_WITHOUT_DROPOUT = frozenset({torch.ops.aten.scaled_dot_product_attention.default})
#: Pooling whose seventh operand replaces the number of elements.
_AVERAGES = frozenset({"avg_pool2d.default", "avg_pool3d.default"})
#: Operators of whose results importing gives the first one alone.
_FIRST_RESULT = frozenset(
    {
        "max_pool2d_with_indices.default",
        "max_pool3d_with_indices.default",
        "native_group_norm.default",
        "native_layer_norm.default",
        "_native_batch_norm_legit_no_training.default",
    }
)


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
        if target not in _WITHOUT_DROPOUT and any(tag in target.tags for tag in _TAGS):
            return "its result depends on chance, or its shape on data"
        if target.__name__ not in _convertible():
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


@functools.cache
def _convertible() -> frozenset[str]:
    return graphs.convertible()
