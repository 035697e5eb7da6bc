"""Functions of PyTorch that a group may be made of."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
import torch

from felix import target
from felix.network import groups, imported
from felix.torch_calls import functions


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_a_float32_bias_of_narrow_operands(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x, weight, bias = torch.randn(2, 8).to(dtype), torch.randn(4, 8).to(dtype), torch.randn(1, 4)
    result = functions.MAKING["linear"](x, weight, bias)
    assert result.dtype == dtype
    expected = x.double() @ weight.double().T + bias.double()
    torch.testing.assert_close(result.double(), expected, rtol=2e-2, atol=5e-2)
    image, kernel = torch.randn(1, 3, 5, 5).to(dtype), torch.randn(4, 3, 3, 3).to(dtype)
    convolved = functions.MAKING["conv2d"](image, kernel, bias.reshape(1, 4, 1, 1), padding=1)
    plain = torch.conv2d(image.double(), kernel.double(), bias.double().reshape(-1), padding=1)
    assert convolved.dtype == dtype
    torch.testing.assert_close(convolved.double(), plain, rtol=2e-2, atol=8e-2)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize(
    ("name", "n_factors", "options"),
    [
        ("layer_norm", 2, {"normalized_shape": [8]}),
        ("rms_norm", 1, {"normalized_shape": [8]}),
        ("group_norm", 2, {"num_groups": 2}),
    ],
)
def test_float32_factors_of_a_narrow_norm(
    name: str, n_factors: int, options: dict[str, object], dtype: torch.dtype
) -> None:
    """Kernels of GPUs take one type only, and so does `group_norm` of a CPU."""
    torch.manual_seed(0)
    x, factors = torch.randn(3, 8).to(dtype), [torch.randn(8) for _ in range(n_factors)]
    result = functions.MAKING[name](x, *factors, **options, eps=1e-5)
    assert result.dtype == dtype
    wide = [each.to(dtype).double() for each in factors]
    expected = functions.MAKING[name](x.double(), *wide, **options, eps=1e-5)
    torch.testing.assert_close(result.double(), expected, rtol=2e-2, atol=5e-2)


@pytest.mark.parametrize(
    ("call", "calls"),
    [
        (lambda x: x.argmax(1), ["argmax"]),
        (lambda x: x.argmin(1, keepdim=True) + 1, ["argmin", "add"]),
        (lambda x: x.argmax(1).clamp(2, 4), ["argmax", "maximum", "minimum"]),
    ],
    ids=["places", "places with an epilogue", "bounded integers"],
)
def test_forms_of_places(call: Callable[[torch.Tensor], torch.Tensor], calls: list[str]) -> None:
    """The bound below 0 of TVM's places is no call of PyTorch's."""

    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return call(x)

    x = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))
    full = target.parse("llvm")
    (group,) = groups.of(imported.read(Model(), (x,), {}, full).lowered, full)
    assert not isinstance(group.form, str)
    text = group.form.to_json()
    assert [each["function"] for each in json.loads(text)["calls"]] == calls
    assert torch.equal(functions.result(text, [x]), call(x))
