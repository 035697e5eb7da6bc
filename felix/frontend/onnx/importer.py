"""An ONNX model as an imported model: checked, converted to Relax, parameters folded, called by
position or name."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from tvm import relax

from felix import errors, names
from felix.frontend import folding, imported, rewriting
from felix.frontend.onnx import reader, schemas

# Branches of an ONNX model: `If` by an input or a constant is imported, others are refused.
#
# Importing makes one dataflow of all operators. What is computed for the condition of a branch,
# and a branch inside of one, are lost on the way; nothing that reads what is lost may go on.


def check(main: relax.Function, has_branches: bool) -> None:
    """Every value of an imported model is defined.

    Args:
        main: the imported function.
        has_branches: whether the model has the operator 'If'; shapes get lost without it, too.

    Raises:
        WorkloadError: importing lost a value.
    """
    if _is_defined(main.body, set(main.params)):
        return
    reason = (
        "its operator 'If' has a condition that the model computes, or another 'If' inside; "
        "export it without branches (with Where), or with conditions that are constants"
    )
    if not has_branches:
        reason = "it computes a shape from data; export it with shapes that are constants"
    raise errors.WorkloadError(f"the ONNX model cannot be imported: {reason}")


def _is_defined(expression: Any, known: set[Any]) -> bool:
    if isinstance(expression, relax.If):
        parts = (expression.cond, expression.true_branch, expression.false_branch)
        return all(_is_defined(part, set(known)) for part in parts)
    if not isinstance(expression, relax.SeqExpr):
        return known.issuperset(relax.analysis.free_vars(expression))
    for block in expression.blocks:
        for binding in block.bindings:
            if not _is_defined(binding.value, known):
                return False
            known.add(binding.var)
    return _is_defined(expression.body, known)


# Calls of an ONNX model: inputs by position or by name, a tensor or a tuple as the result.


@dataclasses.dataclass(frozen=True, slots=True)
class OnnxCalling:
    """How a model is called whose inputs have these names, in this order."""

    inputs: tuple[imported.TensorSpec, ...]

    def flatten(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        """The inputs of a call, tensors or arrays, in the order of `ImportedModel.inputs`."""
        expected = [spec.name for spec in self.inputs]
        by_name = dict(zip(expected, args, strict=False))
        if len(args) > len(expected) or by_name.keys() & kwargs.keys():
            raise errors.WorkloadError("the call gives an input of the ONNX model twice")
        by_name |= kwargs
        if by_name.keys() != set(expected):
            raise errors.WorkloadError(
                f"the ONNX model has the inputs {names.quoted(expected)}; the call gives "
                f"{names.quoted(sorted(by_name))}"
            )
        return [_checked(by_name[spec.name], spec) for spec in self.inputs]

    def arguments_of(self, inputs: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The inputs by position."""
        return tuple(inputs), {}

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


def import_onnx(
    model: str | pathlib.Path | bytes,
    shapes: Mapping[str, Sequence[int]] | None = None,
    values: Mapping[str, Any] | None = None,
) -> imported.ImportedModel:
    """Import a file or its bytes; see `felix.frontend.extract_tasks_onnx`.

    Raises:
        WorkloadError: no ONNX model, one that is refused, or TVM cannot import it.
    """
    proto = reader.prepare(reader.read(model), values or {})
    input_names = list(schemas.inputs(proto.graph))
    has_branches = any(node.op_type == "If" for node in proto.graph.node)
    output_names = [item.name for item in proto.graph.output]
    mod, values = relax.frontend.detach_params(reader.to_relax(proto, shapes))
    parameters = list(values.get("main", []))
    variables = list(imported.main_of(mod).params)
    count = len(variables) - len(parameters)
    # An input whose extents are open is one that no node reads: `inputs` refuses others.
    pairs = list(zip(variables[:count], input_names, strict=True))
    specs = {var: imported.spec_of(var, name) for var, name in pairs}
    inputs = tuple(spec for spec in specs.values() if spec.shape is not None)
    chosen = [var for var in variables if var not in specs or specs[var].shape is not None]
    mod = rewriting.Rewriter(mod).run(lambda _, __: None, lambda: chosen)
    outputs = imported.main_of(mod).ret_ty.fields
    folded = folding.fold(
        imported.ImportedModel(
            mod=mod,
            parameters=tuple(parameters),
            parameter_names=tuple(str(var.name) for var in variables[count:]),
            inputs=inputs,
            outputs=tuple(
                imported.spec_of_type(kind, name)
                for kind, name in zip(outputs, output_names, strict=True)
            ),
            calling=OnnxCalling(inputs),
        )
    )
    check(imported.main_of(folded.mod), has_branches)
    return folded
