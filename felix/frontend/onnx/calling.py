"""Calls of an ONNX model: inputs by position or by name, a tensor or a tuple as the result."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from felix import errors, names
from felix.frontend import imported


@dataclasses.dataclass(frozen=True, slots=True)
class OnnxCalling:
    """How a model is called whose inputs have these names, in this order."""

    inputs: tuple[imported.TensorSpec, ...]

    def flatten(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        """The inputs of a call, tensors or arrays, in the order of `ImportedModel.inputs`."""
        by_name = dict(zip((spec.name for spec in self.inputs), args, strict=False))
        expected = [spec.name for spec in self.inputs]
        if len(args) > len(expected) or by_name.keys() & kwargs.keys():
            raise errors.WorkloadError("the call gives an input of the ONNX model twice")
        by_name |= kwargs
        if by_name.keys() != set(expected):
            raise errors.WorkloadError(
                f"the ONNX model has the inputs {names.quoted(expected)}; the call gives "
                f"{names.quoted(sorted(by_name))}"
            )
        return [_checked(by_name[spec.name], spec) for spec in self.inputs]

    def rebuild(self, outputs: Sequence[Any]) -> Any:
        """One output as it is, several as a tuple."""
        return outputs[0] if len(outputs) == 1 else tuple(outputs)


def _checked(value: Any, spec: imported.TensorSpec) -> Any:
    """An input of the type and shape that the model was imported for."""
    if not (hasattr(value, "shape") and hasattr(value, "dtype")):
        raise errors.WorkloadError(
            f"the input {names.quoted(spec.name)} must be a tensor, got {type(value).__name__}"
        )
    dtype = str(value.dtype).removeprefix("torch.")
    shape = tuple(int(extent) for extent in value.shape)
    if shape != spec.shape or dtype != spec.dtype:
        raise errors.WorkloadError(
            f"the input {names.quoted(spec.name)} is {dtype} {shape}; the model was imported for "
            f"{spec.dtype} {spec.shape}"
        )
    return value
