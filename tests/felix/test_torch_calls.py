"""Functions of PyTorch that a group may be made of, and operators of the catalogue as PyTorch
computes them."""

from __future__ import annotations

import json
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch.nn import functional

from felix import errors, target, workloads
from felix.network import groups, imported
from felix.torch_calls import functions
from felix.workloads import catalogue, torch_forms
from tests.support import modules, workload_values


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


PLACES = torch.tensor([[1, 0], [5, 4], [1, 2]])


@pytest.mark.parametrize(
    ("shape", "places", "take", "call"),
    [
        ((6,), PLACES, lambda x, i: x[i], "take"),
        ((6, 3), PLACES, lambda x, i: functional.embedding(i, x), "embedding"),
        ((3, 6), PLACES[0], lambda x, i: x.index_select(1, i), "take"),
        ((6, 2, 3), PLACES, lambda x, i: x[i], "take"),
        ((2, 6, 3), PLACES, lambda x, i: x[:, i], "take"),
        ((6, 3), torch.tensor(4), lambda x, i: x[4], "embedding"),
        ((2, 6), torch.tensor(4), lambda x, i: x[:, -2], "take"),
    ],
    ids=["elements", "rows", "columns", "matrices", "middle", "one row", "one column"],
)
def test_forms_of_taken_elements(
    shape: tuple[int, ...], places: torch.Tensor, take: Callable[..., torch.Tensor], call: str
) -> None:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    full = target.parse("llvm")
    network = imported.read(modules.Called(take), (x, places), {}, full)
    every = [each.form for each in groups.of(network.lowered, full)]
    forms = [each for each in every if not isinstance(each, str)]
    (form,) = (each for each in forms if each.calls[-1].function == call)
    assert torch.equal(functions.result(form.to_json(), [x, places]), take(x, places))


# PyTorch forms of operators, with parameters that the check suite leaves at their defaults.

TEXTS = [
    "gemm:9,7,5,transpose_b=true,epilogue=residual+bias+relu+bias",
    "gemm:5,6,7,batch=2,transpose_a=true,epilogue=bias+gelu+residual",
    "conv1d:2,19,6,9,3,stride=2,padding=1,groups=3,epilogue=bias+relu",
    "conv1d:1,15,4,8,3,padding=2,dilation=2,epilogue=residual",
    "conv1d:1,15,4,8,3,dilation=3,groups=4,layout=NCW",
    "conv2d:1,9,12,6,8,3x2,stride=1x2,padding=0x1,dilation=2x1,groups=2,epilogue=gelu+bias",
    "conv2d:2,8,7,4,6,1x3,stride=2x1,padding=0x2,layout=NCHW,epilogue=bias+residual",
    "depthwise_conv2d:1,10,9,5,3,multiplier=3,padding=1,dilation=2,epilogue=bias",
    "depthwise_conv2d:1,10,9,4,3x2,multiplier=2,stride=2x1,layout=NCHW",
    "conv3d:1,5,6,7,4,6,3x2x1,stride=1x2x1,padding=1x0x0,dilation=1x1x2,groups=2,epilogue=bias",
    "conv_transpose2d:1,4,5,3,6,4x3,stride=2x3,padding=1x0,output_padding=0x2,epilogue=bias+relu",
    "conv_transpose2d:2,4,5,3,6,3x2,stride=2x1,padding=2x1,layout=NCHW,epilogue=residual",
    "pool2d:1,9,8,3,4x3,stride=2x1,padding=3x1",
    "pool2d:1,9,8,3,3x2,stride=1,padding=1x0,dilation=2x3,layout=NCHW",
    "pool2d:1,9,8,3,3,kind=avg,padding=2",
    "pool2d:1,9,8,3,3x4,kind=avg,stride=1x2,padding=2x1,count_padding=false,layout=NCHW",
    "pool2d:1,9,8,3,3x2,kind=avg,stride=1,padding=1,dilation=2x1",
    "global_pool2d:2,5,3,7,kind=avg,layout=NCHW",
    "layer_norm:4x5x6,axes=0+2,epsilon=0.5",
    "layer_norm:4x5x6,axes=1,affine=false",
    "rms_norm:4x5x6,axes=1+0,epsilon=0.25",
    "reduce:4x5x6,axes=-1+0,kind=max,keepdims=true",
    "reduce:4x5,kind=mean",
    "elementwise:3x4x5,ops=add@0.2+sub@+div+min@1+max@2",
]


@pytest.mark.parametrize("text", TEXTS)
def test_every_parameter_has_its_effect(text: str) -> None:
    workload_values.check(*catalogue.parse_params(text), catalogue.parse(text), 2e-5)


@pytest.mark.parametrize("dtype, out", [("bfloat16", "float16"), ("float16", "bfloat16")])
def test_sums_of_a_narrow_type_may_be_of_another_one(dtype: str, out: str) -> None:
    name, params = catalogue.parse_params(f"gemm:9,7,5,batch=2,dtype={dtype},out_dtype={out}")
    task = workloads.build(name, params)
    tensors = map(torch_forms.tensor, workload_values.random_inputs(task))
    assert torch_forms.form(name, params).call(*tensors).dtype == getattr(torch, out)
    workload_values.check(name, params, task, 2e-2)


def test_a_maximum_of_padding_alone_is_the_least_number() -> None:
    text = "pool2d:1,2,4,1,2,stride=1,padding=1,dilation=3x1"
    task = catalogue.parse(text)
    inputs = workload_values.random_inputs(task)
    output = torch_forms.form(*catalogue.parse_params(text)).call(torch.from_numpy(inputs[0]))
    assert output.numel() == 5 and (output == torch.finfo(torch.float32).min).all()
    np.testing.assert_array_equal(output.numpy(), workload_values.run(task, inputs))


@pytest.mark.parametrize("dtype", ["float16", "float64"])
@pytest.mark.parametrize(
    "text",
    [
        "gemm:8,6,512,epilogue=bias+relu",
        "conv1d:1,9,32,4,3",
        "depthwise_conv2d:1,6,6,4",
        "conv3d:1,3,4,4,8,4,2,layout=NCDHW",
        "pool2d:1,9,8,3,3,kind=avg,padding=2,count_padding=false",
        "reduce:4096,kind=sum",
        "rms_norm:4x512,axes=0",
    ],
)
def test_sums_are_wide_in_every_type(text: str, dtype: str) -> None:
    name, params = catalogue.parse_params(text)
    params["dtype"] = dtype
    task = workloads.build(name, params)
    rtol = 4e-3 if dtype == "float16" else 1e-10
    workload_values.check(name, params, task, rtol)


def test_weights_are_kept_as_pytorch_users_keep_them() -> None:
    form = torch_forms.form("conv2d", {"n": 1, "h": 4, "w": 4, "ci": 3, "co": 5})
    data, kernel = torch.rand(1, 4, 4, 3), torch.rand(3, 3, 3, 5)
    same, stored = form.stored([data, kernel])
    assert same is data and torch.equal(stored, kernel)
    weights = stored.permute(3, 2, 0, 1)
    assert weights.is_contiguous(memory_format=torch.channels_last)
    assert "channels last" in form.note
    output = form.call(data, stored)
    assert output.shape == (1, 2, 2, 5) and output.is_contiguous()
    gemm = torch_forms.form("gemm", {"m": 1, "n": 1, "k": 1})
    assert gemm.stored([data]) == [data] and gemm.note == ""
    half = torch_forms.form("gemm", {"m": 1, "n": 1, "k": 1, "dtype": "float16"})
    assert half.note == "float16 between its calls"


def test_parameters_are_those_of_the_operator() -> None:
    with pytest.raises(errors.WorkloadError, match="missing parameter k"):
        torch_forms.form("gemm", {"m": 4, "n": 4})
    with pytest.raises(errors.WorkloadError, match="unknown parameter"):
        torch_forms.form("gemm", {"m": 4, "n": 4, "k": 4, "kk": 4})
    with pytest.raises(errors.WorkloadError, match="did you mean gemm"):
        torch_forms.form("gem", {})
    complete = catalogue.complete("softmax", {"shape": [3, 4]})
    assert complete == {"shape": (3, 4), "axis": -1, "dtype": "float32"}
