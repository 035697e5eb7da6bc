"""A node of an ONNX model while it is converted, and what of it somebody has looked at.

Conversions, ours and TVM's, read operands and attributes by it, so that what they ignore is known:
a node with an operand, an attribute or an output that nobody looked at is refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
from onnx import helper
from tvm import relax
from tvm.relax.frontend.onnx import onnx_frontend

from felix import errors, names
from felix.frontend import layers, reading
from felix.frontend.layers import dtype_of
from felix.frontend.onnx import constants, schemas
from felix.tir import rounding

#: Attributes that change no result that is supported, or repeat what shapes say, and TVM's own.
_WITHOUT_EFFECT = {"consumed_inputs", "hidden_size", "kernel_shape", "momentum", "num_outputs"}
_WITHOUT_EFFECT |= {"ratio", "seed", "storage_order", "tvm_custom"}


class UnknownValue(errors.WorkloadError):
    """The value of an operand must be known when a model is imported, and is not."""

    def __init__(self, index: int, operand: str) -> None:
        super().__init__(f"its operand {operand!r} must be known when the model is imported")
        self.index, self.operand = index, operand


class Operands(onnx_frontend.onnx_input):  # type: ignore[misc]  # TVM has no types
    """Those of a node, with the positions that nobody has looked at in `unread`.

    There are as many as one asks for: those that the node lacks are None.
    """

    def __init__(self, given: list[Any]) -> None:
        super().__init__(given)
        self.unread = {i for i, each in enumerate(given) if each is not None}

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return super().__getitem__(index)  # one by one
        self.unread.discard(index)
        return list.__getitem__(self, index) if index < len(self) else None

    def __add__(self, more: list[Any]) -> Operands:  # TVM's gives an older node its axes
        self.unread.clear()
        return Operands([*self, *more])

    def __iter__(self) -> Iterator[Any]:
        self.unread.clear()
        values: Iterator[Any] = super().__iter__()
        return values


class Node:
    """A node with its operands as Relax expressions.

    Args:
        importer: TVM's, which has the values of the graph.
        proto: the NodeProto.
        opset: the version of ONNX's operators.
    """

    def __init__(self, importer: Any, proto: Any, opset: int) -> None:
        self._importer = importer
        self.operator, self.name, self.opset = str(proto.op_type), str(proto.name), opset
        self.bb = importer.bb
        self.operands = Operands([importer._nodes[n] if n else None for n in proto.input])
        self.attributes = reading.ByName(
            {each.name: _attribute(each) for each in proto.attribute}
            | {"tvm_custom": {"name": self.name, "num_outputs": len(proto.output)}}
        )
        #: outputs up to the last one that has a name
        self.n_outputs = max((i + 1 for i, n in enumerate(proto.output) if n), default=0)

    @property
    def given(self) -> list[Any]:
        """All operands, which are not read by this."""
        return list(list.__iter__(self.operands))

    @property
    def tables(self) -> list[Any]:
        """What TVM's conversions find constants in."""
        return [self._importer._nodes, self._importer._params]

    def __len__(self) -> int:
        """How many operands it has, empty ones among them."""
        return len(self.operands)

    def __getitem__(self, index: int) -> Any:
        """An operand as a Relax expression; None where the node leaves it out."""
        return self.operands[index]

    def folded(self) -> Any:
        """Its value as a constant, or several as a tuple; None where they are not known."""
        options = {n: v for n, v in self.attributes.data.items() if n != "tvm_custom"}
        return constants.fold(
            self.operator, self.given, options, self.tables, self.n_outputs, self.opset
        )

    def known(self, index: int) -> np.ndarray | None:
        """The value of an operand; None where it is not known, or left out."""
        operand = self.operands[index]
        value: np.ndarray | None = constants.known(operand, self.tables)
        if value is None:
            value = constants.array(operand, self.tables)
        return value

    def value(self, index: int) -> np.ndarray | None:
        """The value of an operand; None where the node leaves it out.

        Raises:
            UnknownValue: it is there, and not known.
        """
        value = self.known(index)
        if value is None and self.operands[index] is not None:
            raise UnknownValue(index, self.formal(index))
        return value

    def integers(self, index: int, attribute: str | None = None) -> list[int] | None:
        """Integers that are an operand or, in older operators, an attribute; None without."""
        if attribute is not None and attribute in self.attributes:
            return [int(number) for number in self.attributes[attribute]]
        value = self.value(index)
        return None if value is None else [int(number) for number in value.reshape(-1)]

    def get(self, name: str, default: Any = None) -> Any:
        """An attribute; texts are `str`."""
        value = self.attributes.get(name, default)
        return value.decode("utf-8", "replace") if isinstance(value, bytes) else value

    def emit(self, value: Any) -> Any:
        """Bind a value."""
        return self.bb.emit(value)

    def widen(self) -> str | None:
        """Give 16-bit floats among the operands in float32; their type before, None without."""
        found = None
        for index, value in enumerate(self.given):
            if (
                isinstance(getattr(value, "ty", None), relax.TensorType)
                and dtype_of(value) in rounding.HALF
            ):
                found = dtype_of(value)
                list.__setitem__(self.operands, index, self.cast(value, "float32"))
        return found

    def cast(self, value: Any, dtype: str) -> Any:
        """A value in an element type; itself, if it has that."""
        return layers.cast(self.emit, value, dtype)

    def formal(self, index: int) -> str:
        """What ONNX calls an operand."""
        found = schemas.schema(self.operator, self.opset)
        formals = [] if found is None else list(found.inputs)
        return str(formals[min(index, len(formals) - 1)].name) if formals else str(index)

    def check(self) -> None:
        """Nothing of the node that changes its result is unread.

        Raises:
            WorkloadError: an operand or an attribute is.
        """
        for index in sorted(self.operands.unread):
            raise errors.WorkloadError(f"its operand {self.formal(index)!r} is not supported")
        found = schemas.schema(self.operator, self.opset)
        for name in sorted(self.attributes.unread - _WITHOUT_EFFECT):
            formal = found.attributes.get(name) if found else None
            usual = formal.default_value if formal else onnx.AttributeProto()
            if not usual.type or _attribute(usual) != self.attributes[name]:
                raise errors.WorkloadError(f"its attribute {names.quoted(name)} is not supported")


def _attribute(proto: Any) -> Any:
    value = helper.get_attribute_value(proto)
    return tuple(value) if isinstance(value, list) else value
