"""Calls of a model in inference mode, as it is and as its export computes them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree


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
