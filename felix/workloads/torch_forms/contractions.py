"""What a PyTorch form is, the epilogues that forms share, and forms of products and
convolutions."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from numpy.typing import NDArray
from torch.nn import functional

from felix import errors
from felix.workloads import common, dtypes


@dataclasses.dataclass(frozen=True, slots=True)
class Form:
    """An operator in PyTorch.

    `call` takes the inputs of the task and returns its output, in the task's shape; in which
    order that lies in memory is the library's choice. `memory_order` has the weights that
    PyTorch's users keep in an order of their own: position of the input -> its axes, from
    outermost to innermost. `note` says what a reader of a latency should know of the form.
    """

    call: Callable[..., torch.Tensor]
    memory_order: Mapping[int, tuple[int, ...]] = dataclasses.field(default_factory=dict)
    note: str = ""

    def stored(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The same inputs in PyTorch's memory order: shapes and values stay."""
        stored = list(inputs)
        for position, order in self.memory_order.items():
            back = [order.index(axis) for axis in range(len(order))]
            stored[position] = inputs[position].permute(order).contiguous().permute(back)
        return stored


def tensor(array: NDArray[Any]) -> torch.Tensor:
    """The tensor of an array, in its memory; of types that numpy itself lacks as well."""
    if array.dtype.isbuiltin == 1:
        return torch.from_numpy(array)
    dtype: torch.dtype = getattr(torch, array.dtype.name)
    return torch.from_numpy(array.view(f"uint{8 * array.itemsize}")).view(dtype)


def split_bias(
    stages: Sequence[str], extra: Sequence[torch.Tensor]
) -> tuple[torch.Tensor | None, Sequence[str], Sequence[torch.Tensor]]:
    """A bias that is the first stage, which library calls add themselves, and what is left."""
    if stages and stages[0] == "bias":
        return extra[0], stages[1:], extra[1:]
    return None, stages, extra


def epilogue(
    output: torch.Tensor, stages: Sequence[str], extra: Sequence[torch.Tensor], channel_axis: int
) -> torch.Tensor:
    """The stages on a tensor that nobody else has, in place where PyTorch can.

    Integers become floats of the scale's type by a scale.
    """
    operands = iter(extra)
    of_channels = [1] * output.ndim
    of_channels[channel_axis] = -1
    for stage in stages:
        match stage:
            case "bias":
                output = output.add_(next(operands).view(of_channels))
            case "residual":
                output = output.add_(next(operands))
            case "scale":
                output = _scaled(output, next(operands).view(of_channels))
            case "scalar_scale":
                output = _scaled(output, next(operands))
            case "relu":
                output = output.relu_()
            case _:
                output = functional.gelu(output)
    return output


def _scaled(output: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return output.mul_(scale) if output.is_floating_point() else output * scale


# Convolutions in PyTorch.
#
# PyTorch names axes (n, c, spatial...) and kernels (co, ci, taps...) whatever their order in
# memory, so tensors with channels last are passed as views, which libraries recognise.

Convolve = Callable[[torch.Tensor, torch.Tensor, torch.Tensor | None], torch.Tensor]

CHANNELS_LAST = "channels last, weights in PyTorch's order"


def convolution(params: Mapping[str, Any]) -> Form:
    """A convolution over 1, 2 or 3 axes, grouped or depthwise; raises as `_check_types`."""
    _check_types(params)
    rank = len(params["layout"]) - 2
    window = [
        common.per_axis(name, params[name], rank) for name in ("stride", "padding", "dilation")
    ]
    groups = params["groups"] if "groups" in params else params["c"]
    is_last = params["layout"].endswith("C")
    # Only from two axes on PyTorch has channels last: one axis becomes two.
    is_lifted = is_last and rank == 1
    if is_lifted:
        window = [(neutral, *values) for neutral, values in zip((1, 0, 1), window, strict=True)]
    library: Callable[..., torch.Tensor] = getattr(functional, f"conv{rank + is_lifted}d")

    def convolve(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        if not is_last:
            return library(x, w, bias, *window, groups)
        if is_lifted:
            x, w = x.unsqueeze(1), w.unsqueeze(0)
        output = library(x.movedim(-1, 1), w.movedim((-1, -2), (0, 1)), bias, *window, groups)
        output = output.movedim(1, -1)
        return output.squeeze(1) if is_lifted else output

    return _form(params, convolve, (rank + 1, *range(rank), rank))


def conv_transpose2d(params: Mapping[str, Any]) -> Form:
    """A transposed convolution over two axes; raises as `_check_types`."""
    _check_types(params)
    stride, padding, output_padding = (
        common.per_axis(name, params[name], 2) for name in ("stride", "padding", "output_padding")
    )
    is_last = params["layout"].endswith("C")

    def convolve(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        if is_last:
            x, w = x.movedim(-1, 1), w.movedim((2, 3), (0, 1))
        output = functional.conv_transpose2d(x, w, bias, stride, padding, output_padding)
        return output.movedim(1, -1) if is_last else output

    return _form(params, convolve, (2, 0, 1, 3))


def _check_types(params: Mapping[str, Any]) -> None:
    """Refuse types that PyTorch does not convolve.

    Raises:
        WorkloadError: bytes, or an output of another type than the inputs.
    """
    dtype = params["dtype"]
    if params["out_dtype"] not in (None, dtype) or dtypes.default_output(dtype) != dtype:
        raise errors.WorkloadError(
            "PyTorch's convolutions are of floats of 16 bits and more, and give the type of their "
            "inputs"
        )


def _form(params: Mapping[str, Any], convolve: Convolve, weight_order: tuple[int, ...]) -> Form:
    """With the epilogue; the axes of weights with channels last in PyTorch's memory order."""
    is_last = params["layout"].endswith("C")

    def call(x: torch.Tensor, w: torch.Tensor, *extra: torch.Tensor) -> torch.Tensor:
        bias, stages, others = split_bias(params["epilogue"], extra)
        return epilogue(convolve(x, w, bias), stages, others, -1 if is_last else 1)

    return Form(call, {1: weight_order}, CHANNELS_LAST) if is_last else Form(call)


# Matrix products in PyTorch.
#
# Of int8 and float8 PyTorch has products of two matrices, with limits on their extents that are
# those of cuBLAS.

Product = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def gemm(params: Mapping[str, Any]) -> Form:
    """A matrix product, with its bias in the same call where PyTorch has such a call.

    Raises:
        WorkloadError: PyTorch has no call for these types and extents.
    """
    match params["dtype"]:
        case "int8":
            return _of_int8(params)
        case "float8_e4m3fn" | "float8_e5m2":
            return _of_float8(params)
    if params["out_dtype"] not in (None, params["dtype"]):
        return _matmul_form(params, functools.partial(_with_output, dtype=params["out_dtype"]))
    if params["batch"] is not None:
        return _matmul_form(params, torch.bmm)

    def call(a: torch.Tensor, b: torch.Tensor, *extra: torch.Tensor) -> torch.Tensor:
        a, b = _matrices(params, a, b)
        bias, stages, others = split_bias(params["epilogue"], extra)
        product = torch.mm(a, b) if bias is None else torch.addmm(bias, a, b)
        return epilogue(product, stages, others, -1)

    return Form(call)


def _matmul_form(params: Mapping[str, Any], multiply: Product) -> Form:
    """A product, then its epilogue."""

    def call(a: torch.Tensor, b: torch.Tensor, *extra: torch.Tensor) -> torch.Tensor:
        product = multiply(*_matrices(params, a, b))
        return epilogue(product, params["epilogue"], extra, -1)

    return Form(call)


def _matrices(
    params: Mapping[str, Any], a: torch.Tensor, b: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    return a.mT if params["transpose_a"] else a, b.mT if params["transpose_b"] else b


def _with_output(a: torch.Tensor, b: torch.Tensor, dtype: str) -> torch.Tensor:
    """A product with another output; CPUs have none but of wide factors, and nothing rounds
    sums of one narrow type to another.
    """
    out = getattr(torch, dtype)
    multiply: Callable[..., torch.Tensor] = torch.mm if a.ndim == 2 else torch.bmm
    if a.itemsize >= out.itemsize:
        return multiply(a, b) if a.itemsize > out.itemsize else multiply(a, b).to(out)
    if a.is_cuda:
        return multiply(a, b, out_dtype=out)
    return multiply(a.to(out), b.to(out))


def _of_int8(params: Mapping[str, Any]) -> Form:
    """A product of int8 in int32."""
    is_possible = params["m"] > 16 and params["n"] % 8 == 0 and params["k"] % 8 == 0
    if params["batch"] is not None or not is_possible:
        raise errors.WorkloadError(
            "PyTorch's product of int8 takes two matrices, m of more than 16, and n and k that "
            "are multiples of 8"
        )

    def multiply(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch._int_mm(a, b) if a.dtype == torch.int8 else torch.mm(a, b)

    made = _matmul_form(params, multiply)
    out = dtypes.output("gemm", "int8", params["out_dtype"], params["epilogue"])

    def call(a: torch.Tensor, b: torch.Tensor, *extra: torch.Tensor) -> torch.Tensor:
        result = made.call(a, b, *extra)
        return result.to(getattr(torch, out)) if a.dtype == torch.int8 else result

    return Form(call)


def _of_float8(params: Mapping[str, Any]) -> Form:
    """A scaled product of float8, with A and B as it takes them in memory.

    A scalar_scale that is the first stage is its scale; else that is 1.
    """
    is_possible = params["n"] % 16 == 0 and params["k"] % 16 == 0
    is_alone = params["batch"] is None
    if params["dtype"] != "float8_e4m3fn" or not is_alone or not is_possible:
        raise errors.WorkloadError(
            "PyTorch's product of float8 takes two matrices of float8_e4m3fn, and n and k that "
            "are multiples of 16"
        )
    out = getattr(torch, params["out_dtype"] or "bfloat16")

    is_scaled = params["epilogue"][:1] == ("scalar_scale",)
    stages = params["epilogue"][is_scaled:]

    def call(a: torch.Tensor, b: torch.Tensor, *extra: torch.Tensor) -> torch.Tensor:
        a, b = _matrices(params, a, b)
        one = _one(a.device)
        scale, others = (extra[0].view(()), extra[1:]) if is_scaled else (one, extra)
        if a.dtype == torch.float8_e4m3fn:
            product = torch._scaled_mm(a, b, scale_a=scale, scale_b=one, out_dtype=out)
        else:
            product = torch.mm(a, b).mul_(scale)
        return epilogue(product, stages, others, -1)

    order = {}
    if params["transpose_a"]:
        order[0] = (1, 0)
    if not params["transpose_b"]:
        order[1] = (1, 0)
    scales = "scales of its call" if is_scaled else "scales of 1"
    return Form(call, order, f"{scales}, A by rows and B by columns in memory")


@functools.cache
def _one(device: torch.device) -> torch.Tensor:
    """A scale of 1, made once."""
    return torch.ones((), device=device)
