"""What conversions of ATen operators to Relax have in common."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from tvm import relax

#: A node of the graph and TVM's importer -> the Relax expression of the node's value.
Converter = Callable[[torch.fx.Node, Any], Any]


class Defaults:
    """TVM's own conversions, for one import."""

    def __init__(self) -> None:
        self._by_name: dict[str, Callable[[torch.fx.Node], Any]] = {}

    def convert(self, name: str, node: torch.fx.Node, importer: Any) -> Any:
        """The value of a node by TVM's conversion of the operator of this name."""
        if not self._by_name:
            self._by_name.update(importer.create_convert_map())
        return self._by_name[name](node)


def arguments(node: torch.fx.Node, importer: Any, count: int) -> list[Any]:
    """A node's first operands by position, with those that it leaves out as None."""
    values = [importer._retrieve_args(argument) for argument in node.args[:count]]
    return values + [None] * (count - len(values))


def cast(importer: Any, value: Any, dtype: str) -> Any:
    """A value in an element type; itself, if it has that."""
    if str(value.ty.dtype) == dtype:
        return value
    return importer.block_builder.emit(relax.op.astype(value, dtype))


@contextlib.contextmanager
def standing_for(importer: Any, values: Mapping[torch.fx.Node, Any]) -> Iterator[None]:
    """Until the block ends these values are those of their nodes."""
    before = {node: importer.env[node] for node in values}
    importer.env.update(values)
    try:
        yield
    finally:
        importer.env.update(before)
