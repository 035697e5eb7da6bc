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
        """The input tensors of a call, in the order of `ImportedModel.inputs`."""
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
        for spec in self.inputs:
            shape = tuple(int(extent) for extent in by_name[spec.name].shape)
            if shape != spec.shape:
                raise errors.WorkloadError(
                    f"the input {names.quoted(spec.name)} has the shape {shape}; the model was "
                    f"imported for {spec.shape}"
                )
        return [by_name[name] for name in expected]

    def rebuild(self, outputs: Sequence[Any]) -> Any:
        """One output as it is, several as a tuple."""
        return outputs[0] if len(outputs) == 1 else tuple(outputs)
