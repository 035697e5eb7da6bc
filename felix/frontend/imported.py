"""A model as Relax reads it: one function, its parameters, and how it is called.

The function `main` takes the model's inputs, then its parameters, and returns a tuple with one
tensor for each output. Inputs and outputs are in the order in which `Calling` flattens and
rebuilds them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import resource
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import tvm
from tvm import relax

from felix.target import memory
from felix.tir import grammar


@dataclasses.dataclass(frozen=True, slots=True)
class TensorSpec:
    """Name, shape and element type (as TVM writes it: "float32", "bfloat16", "int64", "bool").

    The shape is None where data decide it, which only outputs have.
    """

    name: str
    shape: tuple[int, ...] | None
    dtype: str


class Calling(Protocol):
    """How a call of the model becomes the inputs of `main`, and its outputs the model's result."""

    def flatten(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        """The input tensors of a call, in the order of `ImportedModel.inputs`.

        Raises:
            WorkloadError: the call has other arguments than the model was imported with.
        """

    def arguments_of(self, inputs: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """(args, kwargs) of a call that `flatten` makes these inputs of."""

    def rebuild(self, outputs: Sequence[Any]) -> Any:
        """The model's result from its output tensors, in the order of `ImportedModel.outputs`."""


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class ImportedModel:
    """A model in Relax, before operators are lowered.

    Attributes:
        mod: an IRModule whose Relax function "main" calls high-level operators, in one dataflow
            block. Its parameters are `inputs`, then `parameters`; it returns a tuple of `outputs`.
        parameters: the tensors for the inputs of "main" behind `inputs`, after folding. They
            support DLPack and lie where the model has them; those of PyTorch that folding did not
            change share the module's memory. None stands twice in the list.
        parameter_names: names of the parameters in the model; those that folding made have names
            of the layers that they came from.
        inputs: the tensors of a call.
        outputs: the tensors of a result.
        calling: how calls become inputs and outputs become results.
        pytorch: what "main" calls of PyTorch, as TVM does not convert it: forms
            (`torch_calls.form`) as text, by the names of the operators.
    """

    mod: tvm.IRModule
    parameters: tuple[Any, ...]
    parameter_names: tuple[str, ...]
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    calling: Calling
    pytorch: Mapping[str, Sequence[str]] = dataclasses.field(default_factory=dict)


def main_of(mod: tvm.IRModule) -> Any:
    """The Relax function `main` of a module."""
    return mod["main"]


def spec_of(var: Any, name: str | None = None) -> TensorSpec:
    """The spec of a Relax variable of a tensor type."""
    return spec_of_type(var.ty, name if name is not None else str(var.name))


def spec_of_type(kind: Any, name: str) -> TensorSpec:
    """The spec of a Relax tensor type."""
    extents = None if kind.shape is None else list(kind.shape)
    if extents is None or not all(isinstance(extent, tvm.tirx.IntImm) for extent in extents):
        return TensorSpec(name, None, str(kind.dtype))
    return TensorSpec(name, tuple(int(extent) for extent in extents), str(kind.dtype))


# What a model that needs too much memory is told: the limit, and what to do.


def is_short(error: BaseException) -> bool:
    """Whether an error says that there is no memory; TVM's C++ says it in words."""
    return isinstance(error, MemoryError) or "bad_alloc" in str(error)


def message() -> str:
    """The rest of a sentence that begins with what needs the memory."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        most = f"the {memory.machine_bytes() >> 20:,} MiB of this machine"
    else:
        most = f"the {limit >> 20:,} MiB that this process may take"
    return (
        f"needs more memory than {most}: use smaller shapes, a part of the model at a time, or a "
        "larger limit"
    )


@contextlib.contextmanager
def ended(builder: relax.BlockBuilder) -> Iterator[None]:
    """End the block that a failed function leaves open, of which TVM would write to stderr."""
    try:
        yield
    except BaseException:
        with contextlib.suppress(*grammar.TVM_ERRORS):  # it had none yet
            builder._end_block()
        raise
