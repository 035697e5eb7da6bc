"""A model as PyTorch runs it, with which its network is compared: eager, or in a CUDA graph.

It is in inference mode: the model itself as long as that is, then a copy that shares its tensors.
It computes no gradients and knows no autocast, as networks do.
"""

from __future__ import annotations

import contextlib
import copy
import functools
from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch.utils import _pytree as pytree

from felix import errors
from felix.frontend.imported import Calling
from felix.frontend.pytorch import export
from felix.network import agreement, cuda_graph, executable

#: A call as its user makes it.
Call: TypeAlias = Callable[..., Any]

EAGER, GRAPH = "PyTorch eager", "PyTorch eager in a CUDA graph"
#: What models raise that cannot be copied.
_NOT_COPIED = (TypeError, RuntimeError, ValueError, AttributeError, NotImplementedError)


def eager(model: torch.nn.Module) -> Call:
    """Calls of a model in inference mode.

    A model whose own mode is another one, as a whole or now in parts, is copied; one that cannot
    be is put into inference mode for each call.
    """
    is_mixed = any(each.training for each in model.modules())
    alike = functools.cache(lambda: _in_inference_mode(model))

    def call(*args: Any, **kwargs: Any) -> Any:
        is_training = is_mixed or model.training
        casts = [each for each in ("cpu", "cuda") if torch.is_autocast_enabled(each)]
        if not is_training and not casts and not torch.is_grad_enabled():
            return model(*args, **kwargs)
        runs = alike() if is_training else model
        with contextlib.ExitStack() as changes:
            for kind in casts:
                changes.enter_context(torch.autocast(kind, enabled=False))
            if runs is None:
                changes.enter_context(export.evaluating(model))
            with torch.no_grad():
                return (runs or model)(*args, **kwargs)

    return call


def _in_inference_mode(model: torch.nn.Module) -> torch.nn.Module | None:
    """A copy that shares the model's tensors; None where it cannot be copied."""
    shared = {id(each): each for each in (*model.parameters(), *model.buffers())}
    try:
        return copy.deepcopy(model, shared).eval()
    except _NOT_COPIED:
        return None


class Captured:
    """A model whose calls replay a CUDA graph of eager mode; safe to call from several threads.

    Once its parameters lie elsewhere, calls are eager.

    Args:
        model: on a GPU.
        signature: how it is called.
        examples: the tensors of a call.

    Raises:
        TuningError: it cannot be captured.
    """

    def __init__(
        self, model: torch.nn.Module, signature: Calling, examples: tuple[torch.Tensor, ...]
    ) -> None:
        self._signature = signature
        self._turns = executable.Turns(is_gpu=True)
        with torch.inference_mode(False):
            self._inputs = [each.clone() for each in examples]
        args, kwargs = signature.arguments_of(self._inputs)
        call = self._eager = eager(model)
        own = (*model.parameters(), *model.buffers())
        #: the memory that the graph reads, which stays
        self._read = [each.detach() for each in own]
        self._addresses = [(each, each.data_ptr()) for each in own]
        cuda_graph.warm_up(lambda: call(*args, **kwargs))
        self._graph, outputs = cuda_graph.captured(lambda: call(*args, **kwargs))
        leaves = pytree.tree_leaves(outputs)
        self._outputs = [each for each in leaves if isinstance(each, torch.Tensor)]
        self._has_moved = False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What the model returns, in new tensors."""
        if executable.is_capturing() or self._has_moved:
            return self._eager(*args, **kwargs)
        inputs = self._signature.flatten(args, kwargs)
        with self._turns, torch.no_grad():
            for place, value in zip(self._inputs, inputs, strict=True):
                place.copy_(torch.as_tensor(value))
            self._graph.replay()
            # looked at while the GPU works: of a large model it takes long
            self._has_moved = any(each.data_ptr() != read for each, read in self._addresses)
            if not self._has_moved:
                return self._signature.rebuild([each.clone() for each in self._outputs])
        return self._eager(*args, **kwargs)


def of(
    model: torch.nn.Module,
    signature: Calling,
    examples: tuple[torch.Tensor, ...],
    tolerance: float,
) -> dict[str, Call]:
    """What PyTorch can do with a model, by its name; a graph only if it gives the same."""
    calls: dict[str, Call] = {EAGER: eager(model)}
    if not examples or not all(each.is_cuda for each in examples):
        return calls
    args, kwargs = signature.arguments_of(examples)
    with contextlib.suppress(errors.TuningError):
        graph = Captured(model, signature, examples)
        pair = (graph(*args, **kwargs), calls[EAGER](*args, **kwargs))
        actual, expected = map(_tensors, pair)
        if agreement.agree(actual, expected, tolerance):
            calls[GRAPH] = graph
    return calls


def _tensors(result: Any) -> list[torch.Tensor]:
    return [each for each in pytree.tree_leaves(result) if isinstance(each, torch.Tensor)]
