"""PyTorch modules as graphs of ATen operators that compute their results and nothing else.

Operators that TVM has as one stay one: decomposed, an attention or a normalisation would be many
small programs. What a graph may not do is refused here: write to a buffer or an input, draw random
numbers, and choose its operators by data.
"""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch._subclasses import fake_tensor
from torch.export import ExportedProgram, exported_program, graph_signature
from torch.fx.experimental import symbolic_shapes

from felix import errors, names
from felix.tir import grammar

_aten = torch.ops.aten
#: Operators that `torch.export` would decompose and that stay whole.
WHOLE = (
    _aten.scaled_dot_product_attention.default,
    _aten.linear.default,
    _aten.matmul.default,
    _aten.layer_norm.default,
    _aten.rms_norm.default,
    _aten.silu.default,
)
_KINDS = graph_signature.InputKind
_MUTATIONS = {
    graph_signature.OutputKind.BUFFER_MUTATION: "the buffer",
    graph_signature.OutputKind.PARAMETER_MUTATION: "the parameter",
    graph_signature.OutputKind.USER_INPUT_MUTATION: "the input",
}
#: What errors of importing begin with.
MESSAGE = "the PyTorch model cannot be imported: "
#: Element types of tensors in programs.
DTYPES: frozenset[torch.dtype] = frozenset(
    getattr(torch, name)
    for name in "float64 float32 float16 bfloat16 int64 int32 int16 int8 uint8 bool".split()
)
#: TVM's words for operators that it does not convert.
_UNSUPPORTED = re.compile(r"Unsupported function types \[(.*)\]")
#: PyTorch's words for results that are no tensors and hold some.
_UNKNOWN_RESULT = re.compile(r"Found <class '([^']+)'> in output, which is not a known type")
#: What torch.export raises for modules that it cannot trace.
EXPORT_ERRORS = (
    *grammar.TVM_ERRORS,
    AssertionError,
    NotImplementedError,
    ImportError,
    torch._dynamo.exc.TorchDynamoException,
)
#: What it raises for operators of whose results it does not know the shape; the text names one.
_DATA_DEPENDENT = (
    fake_tensor.DynamicOutputShapeException,
    fake_tensor.DataDependentOutputException,
)


def export(
    model: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> ExportedProgram:
    """The graph of a module in inference mode; the module's own mode is restored.

    Raises:
        WorkloadError: torch cannot export the module, or the module does what is refused.
    """
    try:
        with evaluating(model), torch.no_grad(), _one_precision():
            program: ExportedProgram = torch.export.export(model, args, dict(kwargs))
            program = _decomposed(program)
    except EXPORT_ERRORS as error:
        raise errors.WorkloadError(import_message(error)) from error
    _refuse_control_flow(program)
    _refuse_mutations(program)
    for node in program.graph.nodes:
        _refuse_tensors(node)
        _refuse_chance(node)
    return program


@contextlib.contextmanager
def _one_precision() -> Iterator[None]:
    """A context in which cuDNN's `allow_tf32` can be read, as torch.export does.

    PyTorch refuses that where `cudnn.conv.fp32_precision` or that of RNNs was set to something
    else. A graph is the same whatever they say.
    """
    cudnn: Any = torch.backends.cudnn
    with contextlib.ExitStack() as restored:
        try:
            bool(cudnn.allow_tf32)
        except RuntimeError:
            for place in (cudnn.conv, cudnn.rnn):
                restored.callback(setattr, place, "fp32_precision", place.fp32_precision)
            cudnn.allow_tf32 = True
        yield


def _decomposed(program: ExportedProgram) -> ExportedProgram:
    """The program by PyTorch's default decompositions, but for operators that stay whole.

    As `ExportedProgram.run_decompositions` does it, which makes its tables anew for each program
    and replaces what PyTorch's dispatcher does with hundreds of operators by the same: that takes
    longer than to export a small module.
    """
    whole, others = _split_decompositions()
    with fake_tensor.unset_fake_temporarily():
        result: ExportedProgram = exported_program._decompose_exported_program(
            program,
            cia_to_decomp=whole,
            python_decomp_table=others,
            joint_loss_index=None,
            decompose_custom_triton_ops=False,
        )
    return result


@functools.cache
def decompositions() -> dict[Any, Any]:
    """What PyTorch decomposes operators into by default, but for those that stay whole."""
    table: dict[Any, Any] = dict(torch.export.default_decompositions())
    return {operator: made for operator, made in table.items() if operator not in WHOLE}


@functools.cache
def _split_decompositions() -> tuple[dict[Any, Any], dict[Any, Any]]:
    """Operators that PyTorch composes and is to leave whole, and what becomes of the others."""
    table = decompositions()
    composed, others = exported_program._split_decomp_table_to_cia_and_python_decomp({**table})
    return {each: left for each, left in composed.items() if each not in table}, others


@contextlib.contextmanager
def evaluating(model: torch.nn.Module) -> Iterator[None]:
    """The model is in inference mode until the block ends."""
    modes = {module: module.training for module in model.modules()}
    try:
        model.eval()
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode


def import_message(error: BaseException) -> str:
    """What a user is told of an error of torch or TVM."""
    if isinstance(error, symbolic_shapes.GuardOnDataDependentSymNode):
        return (
            "the PyTorch model cannot be imported: its control flow depends on values of tensors; "
            "use torch.where in place of branches, and fixed numbers of iterations"
        )
    if isinstance(error, symbolic_shapes.PendingUnbackedSymbolNotFound):
        return (
            f"{MESSAGE}it has a tensor whose shape depends on values; use torch.where in place of "
            'indices, or torch.compile(model, backend="felix")'
        )
    if isinstance(error, _DATA_DEPENDENT):
        return (
            f"{MESSAGE}what the operator {names.quoted(str(error))} gives depends on values of "
            'tensors; torch.compile(model, backend="felix") leaves it to PyTorch'
        )
    line = grammar.first_line(error)
    if unsupported := _UNSUPPORTED.search(line):
        return (
            f"{MESSAGE}TVM does not import the operators {unsupported[1]}; "
            'torch.compile(model, backend="felix") leaves them to PyTorch'
        )
    if unknown := _UNKNOWN_RESULT.search(line):
        return (
            f"{MESSAGE}it returns the object {names.quoted(unknown[1])}, whose tensors PyTorch "
            "does not find; return tensors (models of transformers: use_cache=False), or register "
            "the class by torch.utils._pytree.register_pytree_node"
        )
    return f"{MESSAGE}{line}"


def _refuse_control_flow(program: ExportedProgram) -> None:
    for node in program.graph.nodes:
        if node.op == "call_function" and isinstance(node.target, torch._ops.HigherOrderOperator):
            raise errors.WorkloadError(
                f"the PyTorch model cannot be imported: it has the control flow "
                f"{names.quoted(str(node.target))}, which depends on values of tensors; use "
                "torch.where in place of branches, and fixed numbers of iterations"
            )


def _refuse_tensors(node: torch.fx.Node) -> None:
    """Refuse tensors of other element types, layouts, and of shapes that data decide."""
    where = f"the input {names.quoted(node.name)}"
    if node.op == "call_function":
        where = f"a result of the operator {names.quoted(str(node.target))}"
    value = node.meta.get("val")
    for tensor in value if isinstance(value, tuple | list) else (value,):
        if not isinstance(tensor, torch.Tensor):
            continue
        if tensor.layout is not torch.strided:
            raise errors.WorkloadError(f"{MESSAGE}{where} is {tensor.layout}, not dense")
        if tensor.dtype not in DTYPES:
            raise errors.WorkloadError(
                f"{MESSAGE}{where} has the element type {tensor.dtype}, which programs have not"
            )
        if symbolic_shapes.free_unbacked_symbols(tensor):
            raise errors.WorkloadError(
                f"{MESSAGE}{where} has a shape that depends on values of tensors; use torch.where "
                "with three arguments in place of indices by a mask, or torch.compile(model, "
                'backend="felix"), which leaves the operator to PyTorch'
            )


def _refuse_chance(node: torch.fx.Node) -> None:
    """Refuse operators that may draw random numbers; attentions are judged elsewhere."""
    target = node.target
    is_off = target is _aten.scaled_dot_product_attention.default
    if target is _aten.native_dropout.default:
        _, share, training = node.args
        is_off = not share or training is False
    tags = target.tags if isinstance(target, torch._ops.OpOverload) else ()
    if torch.Tag.nondeterministic_seeded in tags and node.users and not is_off:
        raise errors.WorkloadError(
            f"{MESSAGE}the operator {names.quoted(str(target))} may draw random numbers; pass "
            "training=False to a dropout, draw outside the model, or use torch.compile(model, "
            'backend="felix"), which leaves the operator to PyTorch'
        )


def _refuse_mutations(program: ExportedProgram) -> None:
    for spec in program.graph_signature.output_specs:
        if spec.kind in _MUTATIONS:
            raise errors.WorkloadError(
                f"the PyTorch model cannot be imported: it changes {_MUTATIONS[spec.kind]} "
                f"{names.quoted(str(spec.target))}; return the new value as an output (a cache), "
                "or use the model in inference mode (batch norm)"
            )


def drop_constant_inputs(program: ExportedProgram) -> list[Any]:
    """Remove inputs that are no tensors, which the graph has as constants.

    Returns:
        For each leaf of the arguments the name of its placeholder, or the constant in a tuple.
    """
    leaves: list[Any] = []
    placeholders = {node.name: node for node in program.graph.find_nodes(op="placeholder")}
    specs = program.graph_signature.input_specs
    for spec in list(specs):
        if spec.kind is not _KINDS.USER_INPUT:
            continue
        if isinstance(spec.arg, graph_signature.TensorArgument):
            leaves.append(spec.arg.name)
            continue
        leaves.append((getattr(spec.arg, "value", None),))
        if spec.arg.name in placeholders:
            program.graph.erase_node(placeholders[spec.arg.name])
        specs.remove(spec)
    return leaves


def drop_constant_outputs(program: ExportedProgram) -> dict[int, Any]:
    """Remove outputs that are no tensors; their values by position.

    Raises:
        WorkloadError: no output is a tensor.
    """
    (output,) = program.graph.find_nodes(op="output")
    nodes, specs = list(output.args[0]), program.graph_signature.output_specs
    is_tensor = [
        isinstance(node, torch.fx.Node) and isinstance(node.meta.get("val"), torch.Tensor)
        for node in nodes
    ]
    if not any(is_tensor):
        raise errors.WorkloadError(
            "the PyTorch model cannot be imported: it returns no tensor that it computes"
        )
    output.args = (tuple(n for n, flag in zip(nodes, is_tensor, strict=True) if flag),)
    specs[:] = [s for s, flag in zip(specs, is_tensor, strict=True) if flag]
    return {i: nodes[i] for i, flag in enumerate(is_tensor) if not flag}


def parameters(program: ExportedProgram) -> dict[str, tuple[str, torch.Tensor]]:
    """Placeholder -> (name in the model, value) of the parameters, in the graph's order."""
    return {
        spec.arg.name: (str(spec.target), program.state_dict[spec.target].detach())
        for spec in program.graph_signature.input_specs
        if spec.kind is _KINDS.PARAMETER
    }
