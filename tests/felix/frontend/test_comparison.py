"""Conversions of rare operators are compared with PyTorch's; what differs is left to PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree
from tvm import relax

from felix import errors, target
from felix.frontend.pytorch import comparison, operators
from felix.network import assembly, imported
from tests.support.modules import Called

X = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))
WITH_NAN = torch.where(X > 1, torch.nan, X)


def _left_to_pytorch(call: Callable[..., Any], *inputs: torch.Tensor) -> list[str]:
    """The operators that PyTorch runs of a network whose outputs are right."""
    model, args = Called(call), inputs or (X,)
    network = imported.read(model, args, {}, target.parse("llvm"))
    results, expected = assembly.untuned_outputs(network), pytree.tree_leaves(model(*args))
    for result, wanted in zip(results, expected, strict=True):
        torch.testing.assert_close(result, wanted, rtol=1e-4, atol=1e-5, equal_nan=True)
    return sorted(network.imported.pytorch)


@pytest.mark.slow("builds programs of some dozen models")
def test_what_is_converted_wrongly_is_left() -> None:
    left = {
        "as_strided": lambda x: x.as_strided((3, 3), (8, 2), 1),  # a part of the memory
        "cumsum": lambda x: torch.cumsum(x.sum(), 0),  # no dimensions
        "grid_sampler_2d": lambda x: nn.functional.grid_sample(  # another layout
            x[None, None], X[None, :, :2, None].mT, align_corners=False
        ),
        "max_pool2d_with_indices": lambda x: (  # places of some calls
            nn.functional.max_pool2d(x[None, None], 2),
            *nn.functional.max_pool2d(x[None, None], 2, return_indices=True),
        ),
        # all results of a norm
        "native_layer_norm": lambda x: torch.native_layer_norm(x, (8,), None, None, 1e-5),
    }
    names = _left_to_pytorch(lambda x: [call(x) for call in left.values()])
    assert names == [f"aten.{name}.default" for name in left]
    assert not _left_to_pytorch(lambda x: (x.topk(3)[0], x.logsumexp(1)), WITH_NAN)
    names = _left_to_pytorch(
        lambda x: nn.functional.max_pool2d(x[None, None], 2, return_indices=True)
    )
    assert names == ["aten.max_pool2d_with_indices.default"]


@pytest.mark.slow("builds programs of some dozen models")
def test_what_is_converted_rightly_stays() -> None:
    table = torch.arange(8.0)
    calls = (
        lambda x, n: (torch.nanmean(n, 1), torch.nansum(n, 1)),
        lambda x, n: (n == n, n != n, torch.isnan(n)),
        lambda x, n: (narrow := n.bfloat16()) != narrow,
        lambda x, n: torch.remainder(x, 0.7).roll(2, 1),
        lambda x, n: nn.functional.instance_norm(x[None]),
        lambda x, n: nn.functional.interpolate(x[None], scale_factor=2.0, mode="linear"),
        lambda x, n: ((x > 0).sum(1).clamp(min=2), (x > 0).sum(1).clamp(1, 3)),
        lambda x, n: ((x > 0).sum(1).clamp(max=0.5), x.clamp(max=0.5)),
        lambda x, n: (x.split(9, 1), x.split(3, 1)),
        lambda x, n: ((x - torch.inf).argmax(1), (x + torch.inf).argmin(1)),
        # Operands are such as the operator takes: a wrong index would end the comparison.
        lambda x, n: table.index_select(0, x.flatten().abs().long()),
    )
    assert _left_to_pytorch(lambda x, n: [call(x, n) for call in calls], X, WITH_NAN) == []


@pytest.fixture
def wrong_flip(monkeypatch: pytest.MonkeyPatch) -> None:
    """A conversion that flips no dimension."""

    def same(node: torch.fx.Node, importer: Any) -> Any:
        x = importer.env[node.args[0] if node.args[1] else None]
        return importer.block_builder.emit(relax.op.add(x, relax.const(0, "float32")))

    wrong = {**operators.CONVERSIONS, "flip.default": same}
    monkeypatch.setattr(operators, "CONVERSIONS", wrong)


def test_a_wrong_conversion_is_found(wrong_flip: None) -> None:
    assert _left_to_pytorch(lambda x: x.flip(1)) == ["aten.flip.default"]


def test_what_is_too_large_is_compared_with_shorter_extents(
    wrong_flip: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(comparison, "MOST_ELEMENTS", 600)
    long = X.repeat(8, 5)
    calls = (lambda x: x.flip(1), lambda x: x.roll(3, 1), lambda x: x.cumsum(1))
    assert _left_to_pytorch(lambda x: [call(x) for call in calls], long) == ["aten.flip.default"]


def test_what_cannot_be_compared_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparison, "MOST_ELEMENTS", 100)
    large = X.repeat(8, 5)
    assert _left_to_pytorch(lambda x: x.flip(1), large) == ["aten.flip.default"]


def test_equal_operators_are_compared_once(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[str] = []
    usual = comparison.is_right

    def noted(node: torch.fx.Node, name: str, conversions: comparison.Conversions) -> bool:
        compared.append(name)
        return usual(node, name, conversions)

    monkeypatch.setattr(comparison, "is_right", noted)
    assert _left_to_pytorch(lambda x: x.flip(1) * x.flip(0) + x.flip(1).relu().flip(1)) == []
    assert compared.count("flip.default") == 2


def test_common_operators_are_not_built(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparison, "_converted", None)
    assert _left_to_pytorch(lambda x: (x @ x.T).softmax(1).relu() + x.mean(1)) == []


@pytest.mark.parametrize("view", [lambda x: x.t(), lambda x: x[1:]], ids=["transposed", "slice"])
def test_the_memory_below_a_view_is_refused(view: Callable[..., Any]) -> None:
    with pytest.raises(errors.WorkloadError, match=r"as_strided is called of a view.*unfold"):
        _left_to_pytorch(lambda x: view(x).as_strided((3, 3), (8, 2)))


def test_the_default_device_is_no_matter() -> None:
    with torch.device("meta"):
        assert _left_to_pytorch(lambda x: x.flip(1)) == []
