"""Infinities, NaN, roundings, crossed bounds, remainders and whole quotients are PyTorch's."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional

from felix import target
from felix.network import assembly, imported
from tests.support import share
from tests.support.modules import Called

_aten = torch.ops.aten
NAN, INF = math.nan, math.inf
X = torch.tensor([1.0, 5.5, -5.5, 7.0, -7.0, 0.0, 3.0, 1e30, INF, NAN, 2.5])
Y = torch.tensor([0.1, INF, INF, -2.0, 2.0, 3.0, 0.0, 3.0, 2.0, 1.0, -INF])
WITH_NAN = torch.tensor([[1.0, NAN, 2.0, 3.0, 0.0], [4.0, -INF, INF, 2.0, 1.0]])
ROUNDED = torch.tensor([1.003, 2.001, -1.0045, 70000.0, 3e38, 1e-6, 0.1, 1.00390625, NAN])
WHOLE = torch.tensor([7, -7, 7, -7, 0])

FUNCTIONS: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = {
    "whole quotient": (lambda x, y: x // y, (X, Y)),
    "whole quotient of a number": (lambda x: x // 0.1, (X,)),
    "rounded to 0": (lambda x, y: torch.div(x, y, rounding_mode="trunc"), (X[:5], Y[:5])),
    "remainder": (lambda x, y: x % y, (X, Y)),
    "remainder of a number": (lambda x: torch.remainder(x, 0.7), (X,)),
    "fmod": (torch.fmod, (X, Y)),
    "fmod of a number": (lambda x: torch.fmod(x, -0.7), (X,)),
    "remainder of float16": (lambda x, y: x % y, (X[:7].half(), Y[:7].half())),
    "whole numbers": (lambda x: (x // 2, x % 3, torch.fmod(x, 3)), (WHOLE,)),
    "numbers as PyTorch composes them": (
        lambda x: (_aten.div.Scalar(x, 2), _aten.sub.Scalar(x, 0.5), _aten.add.Scalar(x, 1, 3)),
        (WHOLE,),
    ),
    "crossed bounds": (lambda x: x.clamp(1, -1), (X[:7],)),
    "crossed bounds of integers": (lambda x: x.clamp(1, -1), (WHOLE,)),
    "first two": (lambda x: x.topk(2)[0], (WITH_NAN,)),
    "sorted": (lambda x: (x.sort()[0], x.half().sort(descending=True)[0]), (WITH_NAN,)),
    "places": (lambda x: (x.argmax(-1), x.argmin(), (-x).argmin(0)), (WITH_NAN,)),
    "places of 16 bits": (lambda x: x.bfloat16().argmax(-1), (WITH_NAN,)),
    "quantile": (lambda x: x.quantile(0.3, -1), (WITH_NAN,)),
    "bounded": (
        lambda x: (x.relu(), x.clamp(-1, 2), x.clamp(max=x.flip(0)), functional.relu6(x)),
        (WITH_NAN,),
    ),
    "bounded of 16 bits": (lambda x: (x.half().relu(), x.bfloat16().relu()), (WITH_NAN,)),
    "larger of two": (
        lambda x: (torch.maximum(x, x.flip(0)), torch.minimum(x.flip(0), x)),
        (WITH_NAN,),
    ),
    "largest of windows": (lambda x: functional.max_pool1d(x[None], 2, 1), (WITH_NAN,)),
    "largest of infinities": (
        lambda x: (functional.max_pool1d(x, 2), functional.max_pool2d(x, 2, padding=1)),
        (torch.full((1, 4, 4), -INF),),
    ),
    "largest of all": (lambda x: (x.max(), x.amin(0), x.amax(-1)), (WITH_NAN,)),
    "to bfloat16 and back": (lambda x: x.bfloat16().float(), (ROUNDED,)),
    "to float16 and back": (lambda x: (x.half().float() + 1, x.half().double()), (ROUNDED,)),
    "through both": (lambda x: x.bfloat16().half().float(), (ROUNDED,)),
    "compared in 16 bits": (lambda x: x.bfloat16() > 1, (ROUNDED,)),
    "an operator between": (lambda x: x.bfloat16().relu().float() * 3, (ROUNDED,)),
    "behind a product": (lambda x: (x[:4, None] @ x[None, :4]).bfloat16().float(), (ROUNDED[:4],)),
    "selu": (torch.selu, (WITH_NAN,)),
    "logsumexp": (lambda x: x.logsumexp(-1), (WITH_NAN,)),
    "products with 0": (lambda x: (x * 0.0, 0.0 * x, x * -0.0), (X,)),
    "products with 0 of float16": (lambda x: (x * 0.0, x.exp() * 0.0), (X.half(),)),
    "quotients of 0": (lambda x: 0.0 / x, (X,)),
    "differences of the same": (lambda x: (x - x.detach()) + (lambda y: y - y)(x.exp()), (X,)),
    "unlike": (lambda x, y: (x != y, x != 0, x != 1.0, x.half() != 0, x.bool()), (X, Y)),
    "nonzero ones": (lambda x: (x.count_nonzero(), (x != 0).sum(0)), (WITH_NAN,)),
    "places among sorted ones": (lambda x, y: torch.bucketize(x, y), (X, Y.sort().values)),
    "largest infinity": (lambda x: x.amax(-1), (torch.full((2, 3), -INF),)),
}


@pytest.mark.parametrize("kind", ["llvm", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("name", share.of(FUNCTIONS, 5))
def test_values_are_pytorchs(name: str, kind: str) -> None:
    function, args = FUNCTIONS[name]
    place = imported.device_of(target.parse(kind))
    on_device = [each.to(place) for each in args]
    network = imported.read(Called(function), on_device, {}, target.parse(kind))
    outputs = assembly.untuned_outputs(network)
    expected = function(*on_device)
    expected = [expected] if isinstance(expected, torch.Tensor) else list(expected)
    for actual, right in zip(outputs, expected, strict=True):
        torch.testing.assert_close(actual, right, equal_nan=True, rtol=1e-5, atol=1e-6)


def test_exceptions_are_what_the_guide_says() -> None:
    """docs/guide/models.md: where PyTorch's kernels for some CPUs give something else."""
    x, keys = torch.full((1, 4, 4), INF), torch.ones(1, 4, 4)
    keys[0, 3] = torch.nan  # which only the last row sees
    plain, ones = torch.arange(16.0).view(1, 4, 4), torch.ones(4)

    def called(x: torch.Tensor, plain: torch.Tensor, keys: torch.Tensor) -> list[torch.Tensor]:
        attention = functional.scaled_dot_product_attention(plain, keys, plain, is_causal=True)
        return [
            functional.gelu(x),
            functional.group_norm(plain, 2, ones * INF, ones).abs(),
            functional.interpolate(x, scale_factor=2.0, mode="linear"),
            attention[:, :3],
        ]

    network = imported.read(Called(called), (x, plain, keys), {}, target.parse("llvm"))
    outputs = assembly.untuned_outputs(network)
    assert torch.equal(outputs[0], x)
    assert torch.equal(outputs[1], x)
    assert outputs[2].isnan().any()
    assert outputs[3].isfinite().all()


@pytest.mark.gpu
def test_kernels_have_fast_math() -> None:
    """docs/guide/models.md: subnormal numbers are 0, and so are quotients by large ones; sums that
    cancel are not rounded."""
    x = torch.full((1, 64), 1e-39, device="cuda")
    y = torch.full((1, 64), 2.0**127, device="cuda")
    network = imported.read(
        Called(lambda x, y: (x * 1.5, (y / 2) / y, (y * 0.0 + 0.3 + 1e8) - 1e8)),
        (x, y), {}, target.parse("cuda"),
    )  # fmt: skip
    small, quotients, cancelled = assembly.untuned_outputs(network)
    assert torch.equal(small, torch.zeros_like(x))
    assert torch.equal(quotients, torch.zeros_like(x))
    torch.testing.assert_close(cancelled, torch.full_like(x, 0.3))
