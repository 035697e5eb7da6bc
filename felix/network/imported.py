"""A model as what the rest of this folder works on: imported, lowered, with example inputs."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
import tvm
from torch.export.passes import move_to_device_pass
from torch.utils import _pytree as pytree
from tvm import relax

from felix import errors, frontend
from felix.frontend import imported as frontend_imported
from felix.frontend.pytorch import export
from felix.frontend.rewriting import bindings, operator_name
from felix.network import agreement, judge
from felix.network.passes import memory
from felix.tir import rounding
from felix.torch_calls import functions
from felix.torch_calls.form import form_from_json, register

if TYPE_CHECKING:
    from torch.export import ExportedProgram

#: What `optimize` takes: a module, an exported program, or the path or bytes of an ONNX file.
Model: TypeAlias = "torch.nn.Module | ExportedProgram | str | pathlib.Path | bytes"
#: Targets where none is named, by PyTorch's kind of the device that tensors are on.
TARGETS = {"cpu": "llvm", "cuda": "cuda"}
#: Seed of the inputs that are drawn where there are no examples.
_SEED = 0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """An imported and lowered model.

    Attributes:
        name: for people.
        imported: the model before lowering: parameters, inputs, outputs, how it is called.
        lowered: an IRModule whose "main" takes inputs, then parameters, and calls PrimFuncs, one
            a group of fused operators; empty where there was no time for it.
        target: what it is lowered for.
        examples: the input tensors of one call.
        expected: the model's own outputs on them, those of a judge (`felix.network.judge`) of an
            ONNX file; None where nobody can run that but TVM.
        model: the PyTorch module; None of an ONNX file, and of a network that is tuned.
        file: the ONNX file or its bytes; None of others.
        values: of inputs of an ONNX file that are the same in every call.
        allow_tf32: whether products of float32 may be computed in TF32.
        judged_by: who computed `expected` of an ONNX file, or why nobody did; None of others.
        ask_reference: asks ONNX's reference evaluator, which decides where `expected` differs.
    """

    name: str
    imported: frontend_imported.ImportedModel
    lowered: tvm.IRModule
    target: tvm.target.Target
    examples: tuple[torch.Tensor, ...]
    expected: tuple[torch.Tensor, ...] | None = None
    model: torch.nn.Module | None = None
    file: str | pathlib.Path | bytes | None = None
    values: Mapping[str, Any] | None = None
    allow_tf32: bool = False
    judged_by: str | None = None
    ask_reference: Callable[[], judge.Judgement] | None = None

    @property
    def tolerance(self) -> float:
        """How far its outputs may be from the model's (`agreement`)."""
        may_use_tf32 = self.allow_tf32 and self.target.kind.name == "cuda"
        return agreement.tolerance(torch_dtypes(self.imported), may_use_tf32)


def read(
    model: Model,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    full: tvm.target.Target,
    shapes: Mapping[str, Sequence[int]] | None = None,
    grouping: frontend.Grouping = frontend.Grouping(),  # noqa: B008 - a frozen value
    drawn_on: str | None = None,
    values: Mapping[str, Any] | None = None,
    can_lower: Callable[[], bool] = lambda: True,
) -> Network:
    """Import and lower a model.

    Args:
        model: the model.
        args, kwargs: example inputs of a call (`placed`); an ONNX file needs none.
        full: what to build for.
        shapes: of inputs whose extents an ONNX file leaves open.
        grouping: how groups of operators are chosen.
        drawn_on: PyTorch's name of the device on which an ONNX file's inputs are drawn if there
            are no examples; the target's kind of device if left out.
        values: of inputs of an ONNX file that are the same in every call.
        can_lower: whether there is time to lower a PyTorch model that is imported.

    Raises:
        WorkloadError: torch cannot export the model, or TVM cannot import or lower it.
    """
    if isinstance(model, str | pathlib.Path | bytes):
        place = drawn_on or device_of(full)
        read_model = frontend.import_onnx(model, shapes, values)
        network = _of_onnx(model, read_model, args, kwargs, full, grouping, place)
        return _judged(network, model, values or {})
    if shapes is not None or values is not None:
        raise errors.WorkloadError(
            "shapes and values are for ONNX files: give example inputs instead"
        )
    if not isinstance(model, torch.nn.Module | torch.export.ExportedProgram):
        raise errors.WorkloadError(
            "optimize takes a torch.nn.Module, a torch.export.ExportedProgram or an ONNX file, "
            f"got {type(model).__name__}"
        )
    return _of_torch(model, args, kwargs, full, grouping, can_lower)


def device_of(full: tvm.target.Target) -> str:
    """PyTorch's name of the kind of device that a target's programs run on."""
    return "cpu" if full.kind.name == "llvm" else str(full.kind.name)


def default_target(tensors: Iterable[Any]) -> str:
    """What to build for where these tensors are; a CPU without any.

    Raises:
        TargetError: Felix has no target for their device.
    """
    devices = [each.device.type for each in tensors if isinstance(each, torch.Tensor)]
    device = next((each for each in devices if each != "cpu"), "cpu")
    if device not in TARGETS:
        raise errors.TargetError(f"Felix has no target for the device {device}")
    return TARGETS[device]


def tensors(model: Model, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[torch.Tensor]:
    """The parameters and buffers of a model, and the tensors of a call."""
    own: list[Any] = []
    if isinstance(model, torch.nn.Module):
        own = [*model.parameters(), *model.buffers()]
    elif isinstance(model, torch.export.ExportedProgram):
        own = [*model.state_dict.values(), *model.constants.values()]
    given = pytree.tree_leaves((tuple(args), dict(kwargs)))
    return [each for each in (*own, *given) if isinstance(each, torch.Tensor)]


def placed(
    model: Model, args: Sequence[Any], kwargs: Mapping[str, Any], device: str
) -> tuple[Model, tuple[Any, ...], dict[str, Any]]:
    """A model and its example inputs on a kind of device (`device_of`).

    Programs of torch.export, and inputs of an ONNX file, are moved there.

    Raises:
        WorkloadError: a module or its inputs are on another device.
    """
    if isinstance(model, torch.nn.Module):
        used = {each.device for each in tensors(model, args, kwargs)}
        if elsewhere := {each.type for each in used} - {device}:
            raise errors.WorkloadError(
                f"the model or its example inputs are on {sorted(elsewhere)[0]}, and the target's "
                f"programs run on {device}: move both there, or leave the target out"
            )
        if any(each.index for each in used):
            raise errors.WorkloadError(
                f"networks run on the first GPU, and the model or its example inputs are on "
                f"{max(map(str, used))}: move both to cuda:0, or start Python with "
                f"CUDA_VISIBLE_DEVICES naming the other GPU"
            )
        return model, tuple(args), dict(kwargs)
    if isinstance(model, torch.export.ExportedProgram):
        if not args and not kwargs and model.example_inputs is not None:
            args, kwargs = model.example_inputs
        if any(each.device.type != device for each in tensors(model, (), {})):
            model = move_to_device_pass(model, device)
    on_device = pytree.tree_map_only(
        torch.Tensor, lambda each: each.to(device), (tuple(args), dict(kwargs))
    )
    return model, *on_device


def torch_dtypes(model: frontend_imported.ImportedModel) -> set[torch.dtype]:
    """The element types of a model's parameters and outputs."""
    names = {
        str(each.dtype).removeprefix("torch.") for each in (*model.parameters, *model.outputs)
    }
    return {torch_dtype(name) for name in names}


def torch_dtype(name: str) -> torch.dtype:
    """PyTorch's element type of TVM's name.

    Raises:
        WorkloadError: PyTorch has none.
    """
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise errors.WorkloadError(f"PyTorch has no element type {name}")
    return dtype


class _Exported(torch.nn.Module):
    """The module of an exported program, which has the mode that it was exported in."""

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()
        self.module = module
        self.training = False

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The program's outputs."""
        return self.module(*args, **kwargs)

    def train(self, mode: bool = True) -> _Exported:
        """Nothing to change: torch refuses to."""
        self.training = mode
        return self


def _of_torch(
    model: torch.nn.Module | ExportedProgram,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    full: tvm.target.Target,
    grouping: frontend.Grouping,
    can_lower: Callable[[], bool],
) -> Network:
    module = model
    if isinstance(module, torch.export.ExportedProgram):
        module = _Exported(module.module(check_guards=False))
    read = frontend.import_torch(module, tuple(args), kwargs)
    for forms in read.pytorch.values():
        for text in forms:
            register(form_from_json(text))
    return Network(
        name=type(model).__name__,
        imported=read,
        lowered=memory.own(frontend.lowered(read, full, grouping))
        if can_lower()
        else tvm.IRModule(),
        target=full,
        examples=_copies(read.calling.flatten(args, kwargs)),
        expected=_copies(_expected(module, args, kwargs)),
        model=module,
    )


def _of_onnx(
    model: str | pathlib.Path | bytes,
    read: frontend_imported.ImportedModel,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    full: tvm.target.Target,
    grouping: frontend.Grouping,
    drawn_on: str,
) -> Network:
    has_examples = bool(args) or bool(kwargs)
    examples = read.calling.flatten(args, kwargs) if has_examples else _drawn(read, drawn_on)
    return Network(
        name="ONNX model" if isinstance(model, bytes) else pathlib.Path(model).stem,
        imported=read,
        lowered=frontend.lowered(read, full, grouping),
        target=full,
        examples=_copies(examples),
    )


def _judged(
    network: Network, model: str | pathlib.Path | bytes, values: Mapping[str, Any]
) -> Network:
    """The network of an ONNX file with what a judge computes of it."""
    names = [spec.name for spec in network.imported.inputs]
    given = {**values, **dict(zip(names, network.examples, strict=True))}
    specs = network.imported.outputs

    def ask(engine: str) -> judge.Judgement:
        found = judge.outputs(model, given, engine)
        if found.outputs is None:
            return found
        pairs = zip(found.outputs, specs, strict=True)
        narrow = tuple(
            each.to(torch_dtype(spec.dtype)) if spec.dtype in rounding.HALF else each
            for each, spec in pairs
        )
        return dataclasses.replace(found, outputs=narrow)

    found = ask(judge.RUNTIME)
    return dataclasses.replace(
        network,
        file=model,
        values=values,
        expected=found.outputs,
        judged_by=found.by,
        ask_reference=lambda: ask(judge.REFERENCE),
    )


def _drawn(model: frontend_imported.ImportedModel, device: str) -> list[torch.Tensor]:
    """Random floats; integers, which may be indices, are 0, and 1 where they reach divisors."""
    generator = torch.Generator().manual_seed(_SEED)
    dividing = divisors(model)
    tensors = []
    for number, spec in enumerate(model.inputs):
        dtype = torch_dtype(spec.dtype)
        assert spec.shape is not None  # only outputs have none
        if dtype.is_floating_point:
            tensors.append(torch.randn(spec.shape, generator=generator).to(dtype))
        else:
            tensors.append(torch.full(spec.shape, int(number in dividing), dtype=dtype))
    return [tensor.to(device) for tensor in tensors]


def _copies(values: Iterable[Any]) -> tuple[torch.Tensor, ...]:
    """Tensors that nobody else changes."""
    given = (each if isinstance(each, torch.Tensor) else torch.as_tensor(each) for each in values)
    return tuple(each.detach().clone() for each in given)


# Example calls of a model: what it returns in inference mode, as it is and as exported, and which
# inputs integers are divided by.


def result(module: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """What the model returns."""
    with export.evaluating(module), torch.no_grad():
        return module(*args, **kwargs)


def outputs_on(network: Network, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """What the PyTorch module of a network returns on other inputs than the examples."""
    assert network.model is not None
    return _expected(network.model, *network.imported.calling.arguments_of(inputs))


def _expected(
    module: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> list[torch.Tensor]:
    """The tensors that the model returns without TF32 and PyTorch's fast path of transformers.

    PyTorch convolves float32 in TF32 unless told otherwise. torch.export does not take that path,
    which gives other values at padded places.
    """
    is_fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with functions.products_in("ieee"):
            leaves = pytree.tree_leaves(result(module, args, kwargs))
    finally:
        torch.backends.mha.set_fastpath_enabled(is_fast)
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]


# Which inputs of a model integers are divided by: they must not be 0.

_DIVISIONS = ("divide", "floor_divide", "mod", "floor_mod")


def divisors(model: frontend_imported.ImportedModel) -> set[int]:
    """The positions of inputs that integers are divided by, or by what integers make of them."""
    main = frontend_imported.main_of(model.mod)
    values: dict[Any, Any] = {}
    waiting: list[Any] = []
    for binding in bindings(main):
        values[binding.var] = binding.value
        if operator_name(binding.value) in _DIVISIONS and _is_integer(binding.value):
            waiting.extend(relax.analysis.free_vars(binding.value.args[1]))
    reached: set[Any] = set()
    while waiting:
        var = waiting.pop()
        if var not in reached and _is_integer(var):
            reached.add(var)
            waiting.extend(relax.analysis.free_vars(values[var]) if var in values else ())
    return {
        number for number, param in enumerate(main.params[: len(model.inputs)]) if param in reached
    }


def _is_integer(expr: Any) -> bool:
    """Whether an expression is a tensor of integers."""
    return str(getattr(expr.ty, "dtype", "")).startswith(("int", "uint"))
