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
from felix.frontend.pytorch import comparison, conversion, operators
from felix.network import imported, optimize

X = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))
WITH_NAN = torch.where(X > 1, torch.nan, X)


class _Calls(nn.Module):
    def __init__(self, call: Callable[..., Any]) -> None:
        super().__init__()
        self._call = call

    def forward(self, x: torch.Tensor) -> Any:
        return self._call(x)


def _left_to_pytorch(call: Callable[..., Any], x: torch.Tensor = X) -> list[str]:
    """The operators that PyTorch runs of a network whose outputs are right."""
    model = _Calls(call)
    network = imported.read(model, (x,), {}, target.parse("llvm"))
    results, expected = optimize.plain_outputs(network), pytree.tree_leaves(model(x))
    for result, wanted in zip(results, expected, strict=True):
        torch.testing.assert_close(result, wanted, rtol=1e-4, atol=1e-5, equal_nan=True)
    return sorted(network.imported.pytorch)


@pytest.mark.parametrize(
    ("call", "left"),
    [
        (lambda x: torch.native_layer_norm(x, (8,), None, None, 1e-5), "native_layer_norm"),
        (lambda x: x.as_strided((3, 3), (8, 2), 1), "as_strided"),
        (lambda x: torch.cumsum(x.sum(), 0), "cumsum"),
        (
            lambda x: nn.functional.grid_sample(
                x[None, None], X[None, :, :2, None].mT, align_corners=False
            ),
            "grid_sampler_2d",
        ),
        (
            lambda x: nn.functional.max_pool2d(x[None, None], 2, return_indices=True),
            "max_pool2d_with_indices",
        ),
        (
            lambda x: (
                nn.functional.max_pool2d(x[None, None], 2),
                *nn.functional.max_pool2d(x[None, None], 2, return_indices=True),
            ),
            "max_pool2d_with_indices",
        ),
    ],
    ids=[
        "all results of a norm",
        "a part of the memory",
        "no dimensions",
        "another layout",
        "places of largest elements",
        "places of some calls",
    ],
)
def test_what_is_converted_wrongly_is_left(call: Callable[..., Any], left: str) -> None:
    assert _left_to_pytorch(call) == [f"aten.{left}.default"]


@pytest.mark.parametrize(
    ("call", "x"),
    [
        (lambda x: torch.masked.argmax(x, 1, mask=x > 0), X),
        (lambda x: (torch.nanmean(x, 1), torch.nansum(x, 1)), WITH_NAN),
        (lambda x: (x == x, x != x, torch.isnan(x)), WITH_NAN),
        (lambda x: torch.topk(x, 3, dim=1), X),
        (lambda x: torch.remainder(x, 0.7).roll(2, 1), X),
        (lambda x: nn.functional.instance_norm(x[None]), X),
        (lambda x: nn.functional.interpolate(x[None], scale_factor=2.0, mode="linear"), X),
        (lambda x: (x.argmax(1).clamp(min=2), x.argmax(1).clamp(1, 3)), X),
        (lambda x: (x.argmax(1).clamp(max=0.5), x.clamp(max=0.5)), X),
        (lambda x: (x.split(9, 1), x.split(3, 1)), X),
        (lambda x: ((x - torch.inf).argmax(1), (x + torch.inf).argmin(1)), X),
    ],
    ids=[
        "masked",
        "without NaN",
        "equal to itself",
        "several results",
        "numbers",
        "one result of several",
        "linear interpolation",
        "integers between bounds",
        "floats between bounds",
        "a single part",
        "no finite elements",
    ],
)
def test_what_is_converted_rightly_stays(call: Callable[..., Any], x: torch.Tensor) -> None:
    assert _left_to_pytorch(call, x) == []


@pytest.fixture
def wrong_flip(monkeypatch: pytest.MonkeyPatch) -> None:
    """A conversion that flips no dimension."""
    usual = operators.convert_map

    def convert_map() -> dict[str, conversion.Converter]:
        def same(node: torch.fx.Node, importer: Any) -> Any:
            x = importer.env[node.args[0]]
            return importer.block_builder.emit(relax.op.add(x, relax.const(0, "float32")))

        return {**usual(), "flip.default": same}

    monkeypatch.setattr(operators, "convert_map", convert_map)


def test_a_wrong_conversion_is_found(wrong_flip: None) -> None:
    assert _left_to_pytorch(lambda x: x.flip(1)) == ["aten.flip.default"]


def test_what_is_too_large_is_not_compared(
    wrong_flip: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(comparison, "MOST_ELEMENTS", 2 * X.numel() - 1)
    with pytest.raises(AssertionError, match="not close"):
        _left_to_pytorch(lambda x: x.flip(1))


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


def test_a_comparison_with_itself_of_16_bits() -> None:
    assert _left_to_pytorch(lambda x: x != x, WITH_NAN.bfloat16()) == []


def test_the_default_device_is_no_matter() -> None:
    with torch.device("meta"):
        assert _left_to_pytorch(lambda x: x.flip(1)) == []


def test_operands_are_such_as_the_operator_takes() -> None:
    """Indices that PyTorch takes: a wrong one would end the comparison."""
    table = torch.arange(8.0)
    assert _left_to_pytorch(lambda x: table.index_select(0, x.flatten().abs().long())) == []
