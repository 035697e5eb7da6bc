"""Matrix products in PyTorch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from felix.workloads.torch_forms import form


def gemm(params: Mapping[str, Any]) -> form.Form:
    """A matrix product, with its bias in the same call unless it is batched."""

    def call(a: torch.Tensor, b: torch.Tensor, *extra: torch.Tensor) -> torch.Tensor:
        a = a.mT if params["transpose_a"] else a
        b = b.mT if params["transpose_b"] else b
        stages = params["epilogue"]
        if params["batch"] is not None:
            return form.epilogue(torch.bmm(a, b), stages, extra, -1)
        bias, stages, others = form.split_bias(stages, extra)
        product = torch.mm(a, b) if bias is None else torch.addmm(bias, a, b)
        return form.epilogue(product, stages, others, -1)

    return form.Form(call)
