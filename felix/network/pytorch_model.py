"""A model as PyTorch runs it, with which its network is compared: eager, or in a CUDA graph.

It is in inference mode and computes no gradients. Its parameters are the model's own.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch.utils import _pytree as pytree

from felix import errors
from felix.frontend.imported import Calling
from felix.frontend.pytorch import export
from felix.network import cuda_graph, executable

#: A call as its user makes it.
Call: TypeAlias = Callable[..., Any]

EAGER, GRAPH = "PyTorch eager", "PyTorch eager in a CUDA graph"


def eager(model: torch.nn.Module) -> Call:
    """Calls of a model in inference mode and without autocast, as those of its network are.

    Two threads must not call it at once while the model itself is in training mode.
    """

    def call(*args: Any, **kwargs: Any) -> Any:
        with contextlib.ExitStack() as changes:
            for kind in ("cpu", "cuda"):
                if torch.is_autocast_enabled(kind):
                    changes.enter_context(torch.autocast(kind, enabled=False))
            if model.training:
                changes.enter_context(export.evaluating(model))
            with torch.no_grad():
                return model(*args, **kwargs)

    return call


class Captured:
    """A model whose calls replay a CUDA graph of eager mode; safe to call from several threads.

    Args:
        model: on a GPU.
        signature: how it is called.
        examples: the tensors of a call.

    Raises:
        TuningError: it cannot be captured, or returns something else than tensors.
    """

    def __init__(
        self, model: torch.nn.Module, signature: Calling, examples: tuple[torch.Tensor, ...]
    ) -> None:
        self._signature = signature
        self._turns = executable.Turns(is_gpu=True)
        with torch.inference_mode(False):
            self._inputs = [each.clone() for each in examples]
        args, kwargs = signature.arguments_of(self._inputs)
        call = eager(model)
        self._eager = call
        cuda_graph.warm_up(lambda: call(*args, **kwargs))
        self._graph, outputs = cuda_graph.captured(lambda: call(*args, **kwargs))
        leaves = pytree.tree_leaves(outputs)
        self._outputs = [each for each in leaves if isinstance(each, torch.Tensor)]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What the model returns, in new tensors."""
        inputs = self._signature.flatten(args, kwargs)
        if executable.is_capturing():
            return self._eager(*args, **kwargs)
        with self._turns.take(), torch.no_grad():
            for place, value in zip(self._inputs, inputs, strict=True):
                place.copy_(torch.as_tensor(value))
            self._graph.replay()
            return self._signature.rebuild([each.clone() for each in self._outputs])


def of(
    model: torch.nn.Module, signature: Calling, examples: tuple[torch.Tensor, ...]
) -> dict[str, Call]:
    """What PyTorch can do with a model, by its name."""
    calls = {EAGER: eager(model)}
    if examples and all(each.is_cuda for each in examples):
        with contextlib.suppress(errors.TuningError):
            calls[GRAPH] = Captured(model, signature, examples)
    return calls
