"""Example calls of a model: what it returns in inference mode, as it is and as exported, and which
inputs integers are divided by."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree
from tvm import relax

from felix.frontend import imported as frontend_imported


def result(module: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """What the model returns."""
    with _evaluating(module), torch.no_grad():
        return module(*args, **kwargs)


def as_exported(module: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """What the model returns without PyTorch's fast path of transformers.

    torch.export does not take that path, which gives other values at padded places.
    """
    is_fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        return result(module, args, kwargs)
    finally:
        torch.backends.mha.set_fastpath_enabled(is_fast)


def tensors(result: Any) -> list[torch.Tensor]:
    """The tensors of a result."""
    return [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor)]


@contextlib.contextmanager
def _evaluating(model: torch.nn.Module) -> Iterator[None]:
    """The model is in inference mode until the block ends."""
    modes = {module: module.training for module in model.modules()}
    try:
        model.eval()
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode


# Which inputs of a model integers are divided by: they must not be 0.

_DIVISIONS = ("relax.divide", "relax.floor_divide", "relax.mod", "relax.floor_mod")


def divisors(model: frontend_imported.ImportedModel) -> set[int]:
    """The positions of inputs that integers are divided by, or by what integers make of them."""
    main = frontend_imported.main_of(model.mod)
    values: dict[Any, Any] = {}
    waiting: list[Any] = []
    for block in main.body.blocks:
        for binding in block.bindings:
            values[binding.var] = binding.value
            if _divides_integers(binding.value):
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


def _divides_integers(value: Any) -> bool:
    is_division = getattr(getattr(value, "op", None), "name", "") in _DIVISIONS
    return is_division and _is_integer(value)


def _is_integer(expr: Any) -> bool:
    """Whether an expression is a tensor of integers."""
    return str(getattr(expr.ty, "dtype", "")).startswith(("int", "uint"))
