"""The functions of PyTorch that a group may be made of, and how a form runs them.

Needs torch and nothing of Felix: an artifact has this file as `torch_functions.py`. A form is what
`felix.frontend.torch_calls.form` writes: values are numbered, inputs first, then the result of
each call.

On a GPU everything is put on PyTorch's current stream, and nothing waits. Products of float32 are
computed in TF32 if the form allows it, else in float32, whatever the process allows, and autocast
changes nothing.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.nn import functional

Function = Callable[..., torch.Tensor]


def _extreme(of_tensors: Function, with_number: Function) -> Function:
    """The larger or smaller of two tensors, or of a tensor and a number, in either order."""

    def extreme(first: Any, second: Any, **out: Any) -> torch.Tensor:
        if isinstance(first, torch.Tensor) and isinstance(second, torch.Tensor):
            return of_tensors(first, second, **out)
        tensor, number = (first, second) if isinstance(first, torch.Tensor) else (second, first)
        return with_number(tensor, number, **out)

    return extreme


#: Those that write their result where `out` says.
WRITING: Mapping[str, Function] = {
    "abs": torch.abs, "ceil": torch.ceil, "cos": torch.cos, "cosh": torch.cosh, "erf": torch.erf,
    "exp": torch.exp, "floor": torch.floor, "log": torch.log, "logical_not": torch.logical_not,
    "negative": torch.neg, "round": torch.round, "rsqrt": torch.rsqrt, "sigmoid": torch.sigmoid,
    "sign": torch.sign, "sin": torch.sin, "sinh": torch.sinh, "sqrt": torch.sqrt,
    "square": torch.square, "tan": torch.tan, "tanh": torch.tanh, "add": torch.add,
    "subtract": torch.sub, "multiply": torch.mul, "divide": torch.div, "power": torch.pow,
    "maximum": _extreme(torch.maximum, torch.clamp_min),
    "minimum": _extreme(torch.minimum, torch.clamp_max), "equal": torch.eq, "not_equal": torch.ne,
    "greater": torch.gt, "greater_equal": torch.ge, "less": torch.lt, "less_equal": torch.le,
    "logical_and": torch.logical_and, "logical_or": torch.logical_or,
    "logical_xor": torch.logical_xor, "bitwise_and": torch.bitwise_and,
    "bitwise_or": torch.bitwise_or, "floor_divide": torch.floor_divide,
    "relu": lambda x, **out: torch.clamp_min(x, 0, **out),
    "clamp": torch.clamp, "matmul": torch.matmul,
    "matmul_transposed": lambda a, b, **out: torch.matmul(a, b.transpose(-1, -2), **out),
    "sum": torch.sum, "mean": torch.mean, "amax": torch.amax, "amin": torch.amin,
    "cat": torch.cat,
}  # fmt: skip


def _linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """x @ weight^T + bias in one call; the bias has leading extents of 1."""
    return functional.linear(x, weight, _narrowed(bias, x))


def _narrowed(bias: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """A bias in the operands' type, as PyTorch demands; programs may add it in float32."""
    return bias.reshape(-1).to(x.dtype)


def _convolution(call: Function) -> Function:
    """A convolution; its bias, if there is one, has extents of 1 around its channels."""

    def with_bias(
        x: torch.Tensor, weight: torch.Tensor, *bias: torch.Tensor, **options: Any
    ) -> Any:
        return call(x, weight, *(_narrowed(each, x) for each in bias), **options)

    return with_bias


def _norm(call: Function) -> Function:
    """A norm; its factors in the type of what it norms, as PyTorch's kernels of GPUs demand."""

    def with_factors(x: torch.Tensor, *factors: torch.Tensor, **options: Any) -> torch.Tensor:
        return call(x, *(each.to(x.dtype) for each in factors), **options)

    return with_factors


def _variance(call: Function) -> Function:
    return lambda x, **options: call(x, correction=0, **options)


def _attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    scale: float,
    is_causal: bool,
) -> torch.Tensor:
    """softmax(query @ key^T * scale + bias) @ value."""
    return functional.scaled_dot_product_attention(
        query, key, value, bias, is_causal=is_causal, scale=scale
    )


def _narrowed_bias(bias: torch.Tensor, dtype: str) -> torch.Tensor:
    """The bias of an attention in the type of its query; values stay finite."""
    narrow = getattr(torch, dtype)
    return bias.clamp(min=torch.finfo(narrow).min).to(narrow)


def _causal_mask(scores: torch.Tensor) -> torch.Tensor:
    """Scores with those of later keys at the least value of their type."""
    later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
    return scores.masked_fill(later, torch.finfo(scores.dtype).min)


def _aten(
    *tensors: torch.Tensor, operator: str, arguments: Any, keywords: Any, result: int | None
) -> torch.Tensor:
    """An operator of ATen, and one of its results by number where it has several.

    In its arguments {"tensor": n} is a tensor, {"torch": name} a name of torch, {"device": None}
    the tensors' device.
    """

    def decoded(value: Any) -> Any:
        if isinstance(value, list):
            return [decoded(each) for each in value]
        if not isinstance(value, dict):
            return value
        ((kind, content),) = value.items()
        if kind == "tensor":
            return tensors[content]
        return tensors[0].device if kind == "device" else getattr(torch, content)

    packet, overload = operator.split(".")
    call = getattr(getattr(torch.ops.aten, packet), overload)
    results = call(*decoded(arguments), **{name: decoded(each) for name, each in keywords.items()})
    made: torch.Tensor = results if result is None else results[result]
    return made


#: Those that make a tensor of their own.
MAKING: Mapping[str, Function] = {
    "silu": functional.silu, "gelu": functional.gelu, "selu": functional.selu,
    "leaky_relu": functional.leaky_relu, "softplus": functional.softplus,
    "where": torch.where, "to": lambda x: x, "var": _variance(torch.var),
    "std": _variance(torch.std), "argmax": torch.argmax, "argmin": torch.argmin,
    "softmax": torch.softmax, "log_softmax": torch.log_softmax,
    "layer_norm": _norm(lambda x, weight, bias, normalized_shape, eps: functional.layer_norm(
        x, normalized_shape, weight, bias, eps
    )),
    "rms_norm": _norm(lambda x, weight, normalized_shape, eps: functional.rms_norm(
        x, normalized_shape, weight, eps
    )),
    "group_norm": _norm(lambda x, weight, bias, num_groups, eps: functional.group_norm(
        x, num_groups, weight, bias, eps
    )),
    "linear": _linear,
    "conv1d": _convolution(functional.conv1d), "conv2d": _convolution(functional.conv2d),
    "conv3d": _convolution(functional.conv3d),
    "conv_transpose1d": _convolution(functional.conv_transpose1d),
    "conv_transpose2d": _convolution(functional.conv_transpose2d),
    "conv_transpose3d": _convolution(functional.conv_transpose3d),
    "max_pool1d": functional.max_pool1d, "max_pool2d": functional.max_pool2d,
    "max_pool3d": functional.max_pool3d, "avg_pool1d": functional.avg_pool1d,
    "avg_pool2d": functional.avg_pool2d, "avg_pool3d": functional.avg_pool3d,
    "adaptive_avg_pool1d": functional.adaptive_avg_pool1d,
    "adaptive_avg_pool2d": functional.adaptive_avg_pool2d,
    "adaptive_avg_pool3d": functional.adaptive_avg_pool3d,
    "reshape": torch.reshape, "permute": torch.permute, "narrow": torch.narrow,
    "expand": lambda x, shape: x.expand(shape),
    "attention": _attention, "attention_bias": _narrowed_bias, "causal_mask": _causal_mask,
    "swap_last": lambda x: x.transpose(-1, -2),
    "aten": _aten, "embedding": lambda table, indices: functional.embedding(indices, table),
}  # fmt: skip


def result(text: str, inputs: Sequence[torch.Tensor]) -> torch.Tensor:
    """What a form gives of inputs; of meta tensors the type and shape of its result."""
    form = json.loads(text)
    values = list(inputs)
    for call in form["calls"]:
        made = _function(call["function"])(*_operands(call["operands"], values), **call["options"])
        values.append(made.to(getattr(torch, call["dtype"])))
    return values[-1]


def packed(text: str) -> Callable[..., None]:
    """A function of tensors that support DLPack: a form's inputs, then the place of its result.

    Args:
        text: the form.
    """
    form = json.loads(text)
    calls = [
        (call["function"], call["operands"], call["options"], getattr(torch, call["dtype"]))
        for call in form["calls"]
    ]
    precision = "tf32" if form.get("allow_tf32") else "ieee"

    def call(*arguments: Any) -> None:
        *inputs, out = map(torch.utils.dlpack.from_dlpack, arguments)
        with _as_measured(out, precision):
            values = list(inputs)
            for function, operands, options, dtype in calls[:-1]:
                result = _function(function)(*_operands(operands, values), **options)
                values.append(result.to(dtype))
            _write(calls[-1], values, out)

    return call


def _write(call: tuple[str, Any, Any, Any], values: Sequence[torch.Tensor], out: Any) -> None:
    """The last call, its result in `out`."""
    name, operands, options, _ = call
    resolved = _operands(operands, values)
    tensors = [each for each in resolved if isinstance(each, torch.Tensor)]
    if name in WRITING and all(each.dtype == out.dtype for each in tensors):
        WRITING[name](*resolved, **options, out=out)
    else:
        out.copy_(_function(name)(*resolved, **options))


def _operands(operands: Sequence[Any], values: Sequence[torch.Tensor]) -> list[Any]:
    """The values that a call reads."""
    resolved: list[Any] = []
    for each in operands:
        if isinstance(each, dict):
            resolved.append(each["constant"])
        elif isinstance(each, list):
            resolved.append([values[number] for number in each])
        else:
            resolved.append(values[each])
    return resolved


def _function(name: str) -> Function:
    return WRITING[name] if name in WRITING else MAKING[name]


@contextlib.contextmanager
def _as_measured(out: torch.Tensor, precision: str) -> Iterator[None]:
    """No autocast or gradients inside, and products of float32 in this precision."""
    with contextlib.ExitStack() as stack:
        if torch.is_grad_enabled():
            stack.enter_context(torch.no_grad())
        if torch.is_autocast_enabled(out.device.type):
            stack.enter_context(torch.autocast(out.device.type, enabled=False))
        if out.is_cuda:
            stack.enter_context(_products_in(precision))
        yield


@contextlib.contextmanager
def _products_in(precision: str) -> Iterator[None]:
    """Products and convolutions of float32 in "tf32" or in float32 ("ieee")."""
    cudnn: Any = torch.backends.cudnn
    places: tuple[Any, Any] = torch.backends.cuda.matmul, cudnn.conv
    precisions = [place.fp32_precision for place in places]
    try:
        for place in places:
            place.fp32_precision = precision
        yield
    finally:
        for place, precision in zip(places, precisions, strict=True):
            place.fp32_precision = precision
