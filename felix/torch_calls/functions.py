"""The functions of PyTorch that a group may be made of, and how a form runs them.

Needs torch and nothing of Felix: an artifact has this file as `torch_functions.py`. A form is what
`felix.torch_calls.form` writes: values are numbered, inputs first, then the result of
each call.

On a GPU everything is put on PyTorch's current stream, and nothing waits. Products of float32 are
computed in TF32 if the form allows it, else in float32, whatever the process allows, and autocast
changes nothing.
"""

from __future__ import annotations

import contextlib
import functools
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.nn import functional

Function = Callable[..., torch.Tensor]


def _of_torch(names: str) -> dict[str, Function]:
    """Functions of torch by their own names."""
    return {name: getattr(torch, name) for name in names.split()}


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
    **_of_torch(
        "abs add amax amin bitwise_and bitwise_or cat ceil clamp cos cosh erf exp floor "
        "floor_divide log logical_and logical_not logical_or logical_xor matmul mean round rsqrt "
        "sigmoid sign sin sinh sqrt square sum tan tanh"
    ),
    "negative": torch.neg,
    "subtract": torch.sub,
    "multiply": torch.mul,
    "divide": torch.div,
    "power": torch.pow,
    "equal": torch.eq,
    "not_equal": torch.ne,
    "greater": torch.gt,
    "greater_equal": torch.ge,
    "less": torch.lt,
    "less_equal": torch.le,
    "maximum": _extreme(torch.maximum, torch.clamp_min),
    "minimum": _extreme(torch.minimum, torch.clamp_max),
    "relu": lambda x, **out: torch.clamp_min(x, 0, **out),
    "matmul_transposed": lambda a, b, **out: torch.matmul(a, b.transpose(-1, -2), **out),
}


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
    """The bias of an attention in the type of its query; finite values stay so."""
    narrow = getattr(torch, dtype)
    finite = bias.clamp(min=torch.finfo(narrow).min).to(narrow)
    return finite.masked_fill(bias == -math.inf, -math.inf)


def _masked_softmax(scores: torch.Tensor) -> torch.Tensor:
    """Softmax of the last dimension, and zeros for rows of minus infinity."""
    is_masked = scores.amax(-1, keepdim=True) == -math.inf
    return torch.softmax(scores, -1).masked_fill(is_masked, 0.0)


def _causal_mask(scores: torch.Tensor) -> torch.Tensor:
    """Scores with those of later keys at the least value of their type."""
    later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
    return scores.masked_fill(later, torch.finfo(scores.dtype).min)


def _take(x: torch.Tensor, indices: torch.Tensor, dim: int) -> torch.Tensor:
    """x at indices along a dimension, which those of the indices replace."""
    taken = x.index_select(dim, indices.reshape(-1))
    return taken.reshape(*x.shape[:dim], *indices.shape, *x.shape[dim + 1 :])


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


def _of_functional(names: str, change: Callable[[Function], Function]) -> dict[str, Function]:
    """Functions of torch.nn.functional in one, two and three dimensions, changed."""
    every = [f"{name}{n}d" for name in names.split() for n in (1, 2, 3)]
    return {name: change(getattr(functional, name)) for name in every}


#: Those that make a tensor of their own.
MAKING: Mapping[str, Function] = {
    **_of_torch("argmax argmin log_softmax narrow permute reshape softmax where"),
    **{n: getattr(functional, n) for n in ("gelu", "leaky_relu", "selu", "silu", "softplus")},
    "to": lambda x: x,
    "expand": lambda x, shape: x.expand(shape),
    "swap_last": lambda x: x.transpose(-1, -2),
    "embedding": lambda table, indices: functional.embedding(indices, table),
    "take": _take,
    "var": functools.partial(torch.var, correction=0),
    "std": functools.partial(torch.std, correction=0),
    "layer_norm": _norm(
        lambda x, weight, bias, normalized_shape, eps: functional.layer_norm(
            x, normalized_shape, weight, bias, eps
        )
    ),
    "rms_norm": _norm(
        lambda x, weight, normalized_shape, eps: functional.rms_norm(
            x, normalized_shape, weight, eps
        )
    ),
    "group_norm": _norm(
        lambda x, weight, bias, num_groups, eps: functional.group_norm(
            x, num_groups, weight, bias, eps
        )
    ),
    "linear": _linear,
    **_of_functional("conv conv_transpose", _convolution),
    **_of_functional("max_pool avg_pool adaptive_avg_pool", lambda pool: pool),
    "attention": _attention,
    "attention_bias": _narrowed_bias,
    "causal_mask": _causal_mask,
    "masked_softmax": _masked_softmax,
    "aten": _aten,
}


def result(text: str, inputs: Sequence[torch.Tensor]) -> torch.Tensor:
    """What a form gives of inputs; of meta tensors the type and shape of its result."""
    form = json.loads(text)
    values = list(inputs)
    for call in form["calls"]:
        made = function(call["function"])(*_operands(call["operands"], values), **call["options"])
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
            for name, operands, options, dtype in calls[:-1]:
                result = function(name)(*_operands(operands, values), **options)
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
        out.copy_(function(name)(*resolved, **options))


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


def function(name: str) -> Function:
    """The function of a call."""
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
            stack.enter_context(products_in(precision))
        yield


@contextlib.contextmanager
def products_in(precision: str) -> Iterator[None]:
    """Products, convolutions, RNNs of float32 in "tf32" or in float32 ("ieee"), as a context."""
    cudnn: Any = torch.backends.cudnn
    places: tuple[Any, ...] = torch.backends.cuda.matmul, cudnn.conv, cudnn.rnn
    precisions = [place.fp32_precision for place in places]
    try:
        for place in places:
            place.fp32_precision = precision
        yield
    finally:
        for place, precision in zip(places, precisions, strict=True):
            place.fp32_precision = precision
