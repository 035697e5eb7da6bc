"""Networks as the ONNX files that PyTorch's TorchScript exporter writes."""

from __future__ import annotations

import io
import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

OPSET = 17


def export(model: nn.Module, inputs: Sequence[torch.Tensor]) -> bytes:
    """The file's content; a root-mean-square norm, which the opset lacks, is written out."""
    file = io.BytesIO()
    torch.onnx.register_custom_op_symbolic("aten::rms_norm", _rms_norm, OPSET)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.onnx.export(model, tuple(inputs), file, dynamo=False, opset_version=OPSET)
    finally:
        torch.onnx.unregister_custom_op_symbolic("aten::rms_norm", OPSET)
    return file.getvalue()


def _rms_norm(g: Any, x: Any, extents: Any, weight: Any, epsilon: Any) -> Any:
    """x / sqrt(mean(x^2) + epsilon) * weight over the last axes."""
    from torch.onnx import symbolic_helper

    axes = list(range(-len(symbolic_helper._parse_arg(extents, "is")), 0))
    small = symbolic_helper._maybe_get_const(epsilon, "f")
    mean = g.op("ReduceMean", g.op("Mul", x, x), axes_i=axes)
    root = g.op("Sqrt", g.op("Add", mean, g.op("Constant", value_t=torch.tensor(float(small)))))
    result = g.op("Div", x, root)
    return result if symbolic_helper._is_none(weight) else g.op("Mul", result, weight)
