"""Calls of models: arguments as a list of tensors, tensors as what the model returns."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
import tvm
from torch.export import graph_signature
from torch.utils import _pytree as pytree

from felix import errors, names
from felix.frontend import imported

if TYPE_CHECKING:
    from torch.export import ExportedProgram


def imported_program(
    mod: tvm.IRModule,
    parameters: Sequence[Any],
    program: ExportedProgram,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> imported.ImportedModel:
    """An exported program in Relax with how it is called."""
    inputs, outputs, names_of_parameters = _parts(mod, len(parameters))
    leaves, structure = pytree.tree_flatten((tuple(args), dict(kwargs)))
    specs = iter(inputs)
    expected = tuple(next(specs) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves)
    kind = graph_signature.OutputKind.USER_OUTPUT
    results = [spec.arg for spec in program.graph_signature.output_specs if spec.kind is kind]
    constants = {
        number: getattr(arg, "value", None)
        for number, arg in enumerate(results)
        if not isinstance(arg, graph_signature.TensorArgument)
    }
    calling = _TorchCalling(structure, expected, program.call_spec.out_spec, constants)
    return imported.ImportedModel(
        mod, tuple(parameters), names_of_parameters, inputs, outputs, calling
    )


def imported_onnx(
    mod: tvm.IRModule, parameters: Mapping[str, Sequence[Any]]
) -> imported.ImportedModel:
    """An ONNX model in Relax with how it is called."""
    tensors = tuple(parameters.get("main", ()))
    inputs, outputs, names_of_parameters = _parts(mod, len(tensors))
    return imported.ImportedModel(
        mod, tensors, names_of_parameters, inputs, outputs, _NamedCalling(inputs)
    )


def _parts(
    mod: tvm.IRModule, n_parameters: int
) -> tuple[tuple[imported.TensorSpec, ...], tuple[imported.TensorSpec, ...], tuple[str, ...]]:
    """(inputs, outputs, names of parameters) of `main`."""
    main = imported.main_of(mod)
    n_inputs = len(main.params) - n_parameters
    fields = getattr(main.ret_ty, "fields", None) or [main.ret_ty]
    outputs = tuple(
        imported.TensorSpec(f"output{i}", tuple(map(int, field.shape)), str(field.dtype))
        for i, field in enumerate(fields)
    )
    return (
        tuple(map(imported.spec_of, main.params[:n_inputs])),
        outputs,
        tuple(str(each.name) for each in main.params[n_inputs:]),
    )


@dataclasses.dataclass(frozen=True, slots=True)
class _TorchCalling:
    """Calls of a module: constants among its arguments are part of the program."""

    arguments: Any
    leaves: tuple[Any, ...]
    result: Any
    constants: Mapping[int, Any]

    def flatten(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        """The input tensors of a call."""
        leaves, structure = pytree.tree_flatten((tuple(args), dict(kwargs)))
        if structure != self.arguments:
            raise errors.WorkloadError(
                "the call has other arguments than the model was imported with: pass the same "
                "arguments, or import it with these"
            )
        tensors = []
        for leaf, expected in zip(leaves, self.leaves, strict=True):
            if isinstance(expected, imported.TensorSpec):
                tensors.append(_checked(leaf, expected))
            elif leaf is not expected and leaf != expected:
                raise errors.WorkloadError(
                    f"the model was imported with the argument {names.quoted(expected)}, not "
                    f"{names.quoted(leaf)}: import it with this one"
                )
        return tensors

    def rebuild(self, outputs: Sequence[Any]) -> Any:
        """The module's result from its output tensors."""
        tensors = iter(outputs)
        count = len(self.constants) + len(outputs)
        leaves = [
            self.constants[i] if i in self.constants else next(tensors) for i in range(count)
        ]
        return pytree.tree_unflatten(leaves, self.result)


@dataclasses.dataclass(frozen=True, slots=True)
class _NamedCalling:
    """Calls of an ONNX model: tensors or arrays by position or by name."""

    inputs: tuple[imported.TensorSpec, ...]

    def flatten(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        """The input tensors of a call."""
        rest = [spec.name for spec in self.inputs[len(args) :]]
        if len(args) > len(self.inputs) or set(kwargs) != set(rest):
            listed = ", ".join(spec.name for spec in self.inputs)
            raise errors.WorkloadError(f"the model takes the inputs {listed}")
        values = [*args, *(kwargs[name] for name in rest)]
        return [
            _checked(torch.as_tensor(value), spec)
            for value, spec in zip(values, self.inputs, strict=True)
        ]

    def rebuild(self, outputs: Sequence[Any]) -> Any:
        """One tensor, or a tuple of several."""
        return outputs[0] if len(outputs) == 1 else tuple(outputs)


def _checked(leaf: Any, expected: imported.TensorSpec) -> torch.Tensor:
    if not isinstance(leaf, torch.Tensor):
        raise errors.WorkloadError(
            f"the input {expected.name} must be a tensor, got {type(leaf).__name__}"
        )
    actual = (tuple(leaf.shape), str(leaf.dtype).removeprefix("torch."))
    if actual != (expected.shape, expected.dtype):
        raise errors.WorkloadError(
            f"the input {expected.name} is {actual[1]} {actual[0]}; the model was imported for "
            f"{expected.dtype} {expected.shape}"
        )
    return leaf
