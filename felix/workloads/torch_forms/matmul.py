"""Matrix products in PyTorch.

Of int8 and float8 PyTorch has products of two matrices, with limits on their extents that are
those of cuBLAS.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch

from felix import errors
from felix.workloads import dtypes
from felix.workloads.torch_forms import form

Product = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def gemm(params: Mapping[str, Any]) -> form.Form:
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
        return _form(params, functools.partial(_with_output, dtype=params["out_dtype"]))
    if params["batch"] is not None:
        return _form(params, torch.bmm)

    def call(a: torch.Tensor, b: torch.Tensor, *extra: torch.Tensor) -> torch.Tensor:
        a, b = _matrices(params, a, b)
        bias, stages, others = form.split_bias(params["epilogue"], extra)
        product = torch.mm(a, b) if bias is None else torch.addmm(bias, a, b)
        return form.epilogue(product, stages, others, -1)

    return form.Form(call)


def _form(params: Mapping[str, Any], multiply: Product) -> form.Form:
    """A product, then its epilogue."""

    def call(a: torch.Tensor, b: torch.Tensor, *extra: torch.Tensor) -> torch.Tensor:
        product = multiply(*_matrices(params, a, b))
        return form.epilogue(product, params["epilogue"], extra, -1)

    return form.Form(call)


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


def _of_int8(params: Mapping[str, Any]) -> form.Form:
    """A product of int8 in int32."""
    is_possible = params["m"] > 16 and params["n"] % 8 == 0 and params["k"] % 8 == 0
    if params["batch"] is not None or not is_possible:
        raise errors.WorkloadError(
            "PyTorch's product of int8 takes two matrices, m of more than 16, and n and k that "
            "are multiples of 8"
        )

    def multiply(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch._int_mm(a, b) if a.dtype == torch.int8 else torch.mm(a, b)

    made = _form(params, multiply)
    out = dtypes.output("gemm", "int8", params["out_dtype"], params["epilogue"])

    def call(a: torch.Tensor, b: torch.Tensor, *extra: torch.Tensor) -> torch.Tensor:
        result = made.call(a, b, *extra)
        return result.to(getattr(torch, out)) if a.dtype == torch.int8 else result

    return form.Form(call)


def _of_float8(params: Mapping[str, Any]) -> form.Form:
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
        return form.epilogue(product, stages, others, -1)

    order = {}
    if params["transpose_a"]:
        order[0] = (1, 0)
    if not params["transpose_b"]:
        order[1] = (1, 0)
    scales = "scales of its call" if is_scaled else "scales of 1"
    return form.Form(call, order, f"{scales}, A by rows and B by columns in memory")


@functools.cache
def _one(device: torch.device) -> torch.Tensor:
    """A scale of 1, made once."""
    return torch.ones((), device=device)
