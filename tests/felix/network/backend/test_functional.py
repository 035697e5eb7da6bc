"""Calls of graphs that are one part: what goes around AOT autograd, and what must not."""

from __future__ import annotations

import pathlib
import sys
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from tests.support import backend, networks

#: What AOT autograd runs around each call.
_WRAPPERS = "runtime_wrappers.py"


def _files(call: Callable[[], Any]) -> set[str]:
    """Where the Python code lies that a call runs."""
    found: set[str] = set()

    def note(frame: types.FrameType, event: str, _: Any) -> None:
        if event == "call":
            found.add(frame.f_code.co_filename)

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return found


def _chain(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.relu(x) * 2.0 + y


def _reordered(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    first = torch.relu(y)
    return first + x, first, torch.exp(x)


def _with_an_unused(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.relu(y)


_LAYERS = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))


def _layers(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    made: torch.Tensor = _LAYERS(x + y)
    return made


@pytest.mark.parametrize("model", [_chain, _reordered, _with_an_unused, _layers])
def test_what_is_one_part_is_called_directly(
    model: Callable[..., Any], everything_known: pathlib.Path
) -> None:
    fast = backend.compiled(model, everything_known)
    with torch.no_grad():
        for _ in range(2):
            x, y = torch.randn(3, 4), torch.randn(3, 4)
            networks.assert_close(fast(x, y), model(x, y))
        files = _files(lambda: fast(x, y))
        assert not [file for file in files if file.endswith(_WRAPPERS)]
        networks.assert_close(fast(y, x), model(y, x))


def _writes(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x.add_(y)
    return torch.relu(x)


def _view(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (torch.relu(x) + y).t()


def _input(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return torch.relu(x) + y, x


def _same(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    made = torch.relu(x) + y
    return made, made


def _two_views(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    made = torch.relu(x) + y
    return made.view(-1), made.t()


@pytest.mark.parametrize("model", [_writes, _view, _input, _same, _two_views])
def test_what_shares_memory_shares_it(
    model: Callable[..., Any], everything_known: pathlib.Path
) -> None:
    fast = backend.compiled(model, everything_known)
    with torch.no_grad():
        for _ in range(2):
            inputs = torch.randn(3, 4), torch.randn(3, 4)
            others = [each.clone() for each in inputs]
            for made, expected in zip(_all(fast(*inputs)), _all(model(*others)), strict=True):
                networks.assert_close(made, expected)
                assert made.stride() == expected.stride()
            assert all(map(torch.equal, inputs, others))
            assert _sharing(fast, inputs) == _sharing(model, others)


def _all(outputs: Any) -> list[torch.Tensor]:
    return list(outputs) if isinstance(outputs, tuple) else [outputs]


def _sharing(model: Callable[..., Any], inputs: Any) -> list[list[bool]]:
    """Which inputs and outputs of a call share memory."""
    every = [each.untyped_storage().data_ptr() for each in (*inputs, *_all(model(*inputs)))]
    return [[one == other for other in every] for one in every]


def test_under_autocast(everything_known: pathlib.Path) -> None:
    fast = backend.compiled(_layers, everything_known)
    x = torch.randn(3, 4)
    with torch.no_grad():
        networks.assert_close(fast(x, x), _layers(x, x))
        with torch.autocast("cpu", torch.bfloat16):
            assert fast(x, x).dtype == torch.bfloat16
            torch.testing.assert_close(fast(x, x), _layers(x, x), rtol=0.02, atol=0.02)
        assert fast(x, x).dtype == torch.float32
