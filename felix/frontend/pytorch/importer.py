"""A PyTorch module as an imported model: exported, converted to Relax, parameters folded."""

from __future__ import annotations

import contextlib
import functools
import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
import tvm
from torch import _guards
from torch._dispatch import python as dispatch
from torch._dynamo import convert_frame
from torch._subclasses import fake_tensor
from torch.export import exported_program, graph_signature
from torch.fx.experimental import proxy_tensor
from torch.utils import _pytree as pytree
from tvm.relax.frontend import torch as tvm_torch

from felix import errors
from felix.frontend import folding, imported
from felix.frontend.pytorch import calling, constants, conversion, export, operators, unconverted


def import_torch(
    model: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any] | None = None
) -> imported.ImportedModel:
    """Import a module; see `felix.frontend.import_torch`."""
    if not isinstance(model, torch.nn.Module):
        raise errors.WorkloadError(
            f"import_torch needs a torch.nn.Module, got {type(model).__name__}"
        )
    program = export.export(model, tuple(args), calling.in_order(model.forward, kwargs or {}))
    arguments, leaves = calling.ordered(
        model.forward, program.call_spec.in_spec, export.drop_constant_inputs(program)
    )
    constant_outputs = export.drop_constant_outputs(program)
    constants.compute(program)
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
            arguments=arguments,
            leaves=tuple(inputs[leaf] if isinstance(leaf, str) else leaf[0] for leaf in leaves),
            result=program.call_spec.out_spec,
            constants=constant_outputs,
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
            custom_convert_map={**operators.CONVERSIONS, **further},
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


# Graphs of ATen operators as imported models: what a backend of `torch.compile` hands over.
#
# `torch.export` may not run inside a backend. A graph is traced again, with the decompositions
# that an exported module gets (`export.WHOLE` stay whole), so that its programs are those of the
# module.

_KEYS = torch._C.DispatchKey


def read_graph(
    graph: torch.fx.GraphModule, parameters: Mapping[int, torch.Tensor]
) -> imported.ImportedModel:
    """Import a functional graph for the shapes that it was traced with; nothing is folded.

    Args:
        graph: of ATen operators; returns a tensor or a list of them. Its placeholders have a fake
            tensor as `meta["val"]`.
        parameters: of the placeholders with these positions. The other ones are the inputs of a
            call, in their order.

    Raises:
        WorkloadError: TVM cannot import an operator.
    """
    placeholders = graph.graph.find_nodes(op="placeholder")
    order = sorted(range(len(placeholders)), key=lambda index: index in parameters)
    n_inputs = len(order) - len(parameters)
    traced = _traced(graph, order, [placeholders[index].meta["val"] for index in order])
    program = _program(traced)
    constants.compute(program)
    mod = to_relax(program, unconverted.Refused(program).convert_map())
    main = mod.get_global_var("main")  # the importer takes parameters for inputs
    mod.update_func(main, mod[main].with_attr("num_input", n_inputs))
    specs = [imported.spec_of(each) for each in imported.main_of(mod).params]
    inputs, (output,) = tuple(specs[:n_inputs]), traced.graph.find_nodes(op="output")
    return imported.ImportedModel(
        mod=mod,
        parameters=tuple(parameters[index].detach() for index in order[n_inputs:]),
        parameter_names=tuple(spec.name for spec in specs[n_inputs:]),
        inputs=inputs,
        outputs=tuple(output_spec(node) for node in output.args[0]),
        calling=calling.TorchCalling(
            forward=graph.forward,
            arguments=pytree.tree_structure((inputs, {})),
            leaves=inputs,
            result=pytree.tree_structure([*output.args[0]]),
            constants={},
        ),
    )


@functools.cache
def convertible() -> frozenset[str]:
    """Names of the ATen operators that TVM converts or that have a decomposition.

    Whether they convert depends on their operands, too.
    """
    return unconverted.convertible() | {each.__name__ for each in export.decompositions()}


@contextlib.contextmanager
def whole_operators() -> Iterator[None]:
    """While the block runs, tracing leaves the operators of `export.WHOLE` whole."""
    composite = {
        operator: lambda *args, **kwargs: NotImplemented
        for operator in export.WHOLE
        if operator.has_kernel_for_dispatch_key(_KEYS.CompositeImplicitAutograd)
    }
    with exported_program._override_composite_implicit_decomp(composite):
        yield


def _traced(
    graph: torch.fx.GraphModule, order: Sequence[int], ordered: Sequence[torch.Tensor]
) -> torch.fx.GraphModule:
    """The graph decomposed, with its placeholders in this order; it returns a tuple.

    Other threads may run modules meanwhile, so it is not traced by `make_fx`: that changes what
    calls of all modules do, and refuses those of compiled ones.
    """
    tracer = proxy_tensor.PythonKeyTracer()
    tracer.root, tracer.graph, tracer.tensor_attrs = torch.nn.Module(), torch.fx.Graph(), {}
    proxies = [
        tracer.create_proxy("placeholder", f"arg{number}", (), {})
        for number in range(len(ordered))
    ]
    fake_mode = _guards.detect_fake_mode(ordered) or fake_tensor.FakeTensorMode()
    values = dict(zip(order, ordered, strict=True))
    with _decomposed_into(tracer), fake_mode:
        with proxy_tensor.disable_proxy_modes_tracing():
            proxy_tensor.track_tensor_tree(ordered, proxies, constant=None, tracer=tracer)
        try:
            result = graph.forward(*(values[index] for index in range(len(order))))
        except export.EXPORT_ERRORS as error:
            raise errors.WorkloadError(export.import_message(error)) from error
    results = (result,) if isinstance(result, torch.Tensor) else tuple(result)
    outputs = tuple(tracer.unwrap_proxy(each) for each in results)
    tracer.create_node("output", "output", (tracer.create_arg(outputs),), {})
    tracer.graph.eliminate_dead_code()
    return torch.fx.GraphModule(tracer.root, tracer.graph)


@contextlib.contextmanager
def _decomposed_into(tracer: proxy_tensor.PythonKeyTracer) -> Iterator[None]:
    """While the block runs, operators go to a tracer, decomposed as those of a module."""
    with (
        convert_frame.compile_lock,  # PyTorch's compiler looks at what is whole, too
        torch.no_grad(),
        whole_operators(),
        dispatch.enable_python_dispatcher(),
        proxy_tensor.ProxyTorchDispatchMode(tracer, "real"),
        proxy_tensor.decompose(export.decompositions()),
    ):
        yield


def _program(traced: torch.fx.GraphModule) -> torch.export.ExportedProgram:
    """The graph in the form that TVM imports, all of whose placeholders are inputs."""
    placeholders = traced.graph.find_nodes(op="placeholder")
    (output,) = traced.graph.find_nodes(op="output")
    kind, out = graph_signature.InputKind, graph_signature.OutputKind
    argument = graph_signature.TensorArgument
    signature = graph_signature.ExportGraphSignature(
        [
            graph_signature.InputSpec(kind.USER_INPUT, argument(node.name), None)
            for node in placeholders
        ],
        [
            graph_signature.OutputSpec(out.USER_OUTPUT, argument(node.name), None)
            for node in output.args[0]
        ],
    )
    n_inputs, n_outputs = len(placeholders), len(output.args[0])
    structure = exported_program.ModuleCallSignature(
        inputs=[],
        outputs=[],
        in_spec=pytree.tree_structure((tuple(range(n_inputs)), {})),
        out_spec=pytree.tree_structure(tuple(range(n_outputs))),
    )
    return torch.export.ExportedProgram(
        root=traced,
        graph=traced.graph,
        graph_signature=signature,
        state_dict={},
        range_constraints={},
        module_call_graph=[exported_program.ModuleCallEntry("", structure)],
    )
