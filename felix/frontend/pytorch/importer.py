"""A PyTorch module as an imported model: exported, converted to Relax, parameters folded."""

from __future__ import annotations

import types
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import tvm
from torch.utils import _pytree as pytree
from tvm.relax.frontend import torch as tvm_torch

from felix import errors
from felix.frontend import folding, imported
from felix.frontend.pytorch import calling, conversion, export, operators, unconverted


def import_torch(
    model: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any] | None = None
) -> imported.ImportedModel:
    """Import a module in inference mode, for the shapes of example arguments.

    Args:
        model: the module; its parameters are shared, not copied, where folding leaves them.
        args: example inputs, nested as the module takes them; what is no tensor is a constant.
        kwargs: example keyword inputs.

    Raises:
        WorkloadError: torch cannot export the module, it changes buffers or inputs, its control
            flow depends on data, or TVM cannot import it.
    """
    if not isinstance(model, torch.nn.Module):
        raise errors.WorkloadError(
            f"import_torch needs a torch.nn.Module, got {type(model).__name__}"
        )
    bound_args, bound_kwargs = calling.bound(model.forward, tuple(args), kwargs or {})
    program = export.export(model, bound_args, bound_kwargs)
    leaves = export.drop_constant_inputs(program)
    constants = export.drop_constant_outputs(program)
    parameters = export.parameters(program)
    left = unconverted.Unconverted(program)
    mod = to_relax(program, left.convert_map())
    variables = list(imported.main_of(mod).params)
    inputs = {
        spec.name: spec
        for spec in map(imported.spec_of, variables[: len(variables) - len(parameters)])
    }
    (output,) = program.graph.find_nodes(op="output")
    raw = imported.ImportedModel(
        mod=mod,
        parameters=tuple(value for _, value in parameters.values()),
        parameter_names=tuple(name for name, _ in parameters.values()),
        inputs=tuple(inputs.values()),
        outputs=tuple(output_spec(node) for node in output.args[0]),
        calling=calling.TorchCalling(
            forward=model.forward,
            arguments=pytree.tree_structure((bound_args, bound_kwargs)),
            leaves=tuple(inputs[leaf] if isinstance(leaf, str) else leaf[0] for leaf in leaves),
            result=program.call_spec.out_spec,
            constants=constants,
        ),
        pytorch=left.forms,
    )
    return folding.fold(raw)


def to_relax(
    program: torch.export.ExportedProgram,
    further: Mapping[str, conversion.Converter] = types.MappingProxyType({}),
) -> tvm.IRModule:
    """TVM's import of a program, whose parameters stay inputs and whose buffers are constants.

    Args:
        program: the program; its buffers are moved to the CPU, as TVM wants its constants.
        further: conversions of operators that TVM does not convert.

    Raises:
        WorkloadError: TVM cannot import an operator.
    """
    _move_buffers_to_cpu(program)
    try:
        mod = tvm_torch.from_exported_program(
            program,
            keep_params_as_input=True,
            run_ep_decomposition=False,
            custom_convert_map={**operators.convert_map(), **further},
        )
    except export.EXPORT_ERRORS as error:
        raise errors.WorkloadError(export.import_message(error)) from error
    mod["main"] = imported.main_of(mod).without_attr("params")
    return mod


def _move_buffers_to_cpu(program: torch.export.ExportedProgram) -> None:
    """Buffers and other constants only: parameters stay where they are, shared with the module."""
    names = {*program.graph_signature.buffers, *program.constants}
    for values in (program.state_dict, program.constants):
        for name in names & values.keys():
            if isinstance(values[name], torch.Tensor):
                values[name] = values[name].cpu()


def output_spec(node: torch.fx.Node) -> imported.TensorSpec:
    """The spec of a node's value."""
    value = node.meta["val"]
    return imported.TensorSpec(node.name, tuple(value.shape), calling.dtype_name(value.dtype))
