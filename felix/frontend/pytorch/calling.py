"""Calls of a PyTorch module: arguments as a list of tensors, tensors as the module's result."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from felix import errors, names
from felix.frontend import imported

#: Defaults of a signature that are passed as if the caller had written them.
_PLAIN = (bool, int, float, str, type(None))


def bound(
    forward: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """(args, kwargs) as a signature orders them, with plain defaults filled in.

    A call that the signature refuses is left as it is; whoever makes it reports it.
    """
    signature = inspect.signature(forward)
    try:
        call = signature.bind(*args, **kwargs)
    except TypeError:
        return tuple(args), dict(kwargs)
    for name, parameter in signature.parameters.items():
        default = parameter.default
        if name not in call.arguments and isinstance(default, _PLAIN):
            call.arguments[name] = default
    # The signature's order decides what is positional.
    call.arguments = {n: call.arguments[n] for n in signature.parameters if n in call.arguments}
    return call.args, in_order(forward, call.kwargs)


def in_order(forward: Any, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Keyword arguments as a signature has those that may be positional, then others by name."""
    parameters = inspect.signature(forward).parameters.values()
    first = [each.name for each in parameters if each.kind is each.POSITIONAL_OR_KEYWORD]
    order = [*first, *sorted(kwargs.keys() - {*first})]
    return {each: kwargs[each] for each in order if each in kwargs}


@dataclasses.dataclass(frozen=True, slots=True)
class _Leaf:
    """A leaf of the arguments that a module was exported with."""

    value: Any


def ordered(forward: Any, arguments: Any, leaves: Sequence[Any]) -> tuple[Any, list[Any]]:
    """What every call is compared with: the structure of its `bound` arguments, and their leaves.

    A module is exported as it was called: one that looks at how it is called gets what the caller
    wrote, and no default by position. Its inputs are in the order of these leaves.

    Args:
        forward: the module's `forward`.
        arguments: structure of the (args, kwargs) of its export, which are `in_order`.
        leaves: their leaves; a constant is in a tuple.
    """
    args, kwargs = pytree.tree_unflatten([_Leaf(each) for each in leaves], arguments)
    every, structure = pytree.tree_flatten(bound(forward, args, kwargs))
    return structure, [each.value if isinstance(each, _Leaf) else (each,) for each in every]


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class TorchCalling:
    """How a module is called that was exported with example arguments.

    Attributes:
        forward: the module's `forward`, for its signature.
        arguments: structure of (args, kwargs).
        leaves: what a call must have at each leaf: an input's spec, or the constant it was
            exported with.
        result: structure of the result.
        constants: leaves of the result that are no tensors, by their position.
    """

    forward: Any
    arguments: Any
    leaves: tuple[Any, ...]
    result: Any
    constants: Mapping[int, Any]
    _takes_only_tensors: bool = dataclasses.field(init=False)
    _returns_one_tensor: bool = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        plain = pytree.tree_structure(((None,) * len(self.leaves), {}))
        are_tensors = all(isinstance(each, imported.TensorSpec) for each in self.leaves)
        one = pytree.tree_structure(None)
        object.__setattr__(self, "_takes_only_tensors", are_tensors and self.arguments == plain)
        object.__setattr__(self, "_returns_one_tensor", self.result == one and not self.constants)

    def flatten(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        """The input tensors of a call, in the order of `ImportedModel.inputs`.

        Tensors by position, as most calls have them, are only checked: binding and flattening
        take longer than launching a network.
        """
        if self._takes_only_tensors and not kwargs and len(args) == len(self.leaves):
            return [_checked(leaf, spec) for leaf, spec in zip(args, self.leaves, strict=True)]
        leaves, structure = pytree.tree_flatten(bound(self.forward, args, kwargs))
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

    def arguments_of(self, inputs: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """(args, kwargs) of a call with these input tensors: what `flatten` takes apart."""
        tensors = iter(inputs)
        leaves = [
            next(tensors) if isinstance(leaf, imported.TensorSpec) else leaf
            for leaf in self.leaves
        ]
        args, kwargs = pytree.tree_unflatten(leaves, self.arguments)
        return tuple(args), kwargs

    def rebuild(self, outputs: Sequence[Any]) -> Any:
        """The module's result from its output tensors."""
        if self._returns_one_tensor:
            return outputs[0]
        tensors = iter(outputs)
        count = len(self.constants) + len(outputs)
        leaves = [
            self.constants[i] if i in self.constants else next(tensors) for i in range(count)
        ]
        return pytree.tree_unflatten(leaves, self.result)


@functools.cache
def dtype_name(dtype: torch.dtype) -> str:
    """An element type as TVM writes it."""
    return str(dtype).removeprefix("torch.")


def _checked(leaf: Any, expected: imported.TensorSpec) -> torch.Tensor:
    if not isinstance(leaf, torch.Tensor):
        raise errors.WorkloadError(
            f"the input {expected.name} must be a tensor, got {type(leaf).__name__}"
        )
    if leaf.shape != expected.shape or dtype_name(leaf.dtype) != expected.dtype:
        raise errors.WorkloadError(
            f"the input {expected.name} is {dtype_name(leaf.dtype)} {tuple(leaf.shape)}; the "
            f"model was imported for {expected.dtype} {expected.shape}"
        )
    return leaf
