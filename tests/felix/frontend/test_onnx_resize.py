"""ONNX's Resize by any scales, run on the CPU against PyTorch and ONNX's reference."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx", reason="onnx is an optional extra")

import torch
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator
from torch import nn
from torch.nn import functional

from felix import errors, frontend
from tests.felix.frontend.test_networks import assert_agrees, run
from tests.support import share
from tests.support.hostile import onnx_models

SCALES = [1, 1, 1.7, 2.3]


class Interpolate(nn.Module):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.options = options

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.interpolate(x, **self.options)


def exported(module: nn.Module, x: torch.Tensor) -> bytes:
    file = io.BytesIO()
    torch.onnx.export(module, (x,), file, dynamo=False)
    return file.getvalue()


def model(
    scales: Any = None, sizes: Any = None, shape: Any = (1, 2, 6, 7), **attributes: Any
) -> Any:
    names = ["x", "", "s"] if scales is not None else ["x", "", "", "s"]
    array = np.array(sizes, "int64") if scales is None else np.array(scales, "float32")
    node = onnx_models.node("Resize", names, ["y"], **attributes)
    given = [numpy_helper.from_array(array, "s")]
    return onnx_models.model([node], given, [onnx_models.value("x", shape)], opset=19)


def result(content: bytes, x: torch.Tensor) -> Any:
    imported = frontend.import_onnx(content)
    return run(imported, frontend.lowered(imported), [x])


INTERPOLATIONS = [
    {"scale_factor": (1.7, 2.3), "mode": "bilinear"},
    {"scale_factor": 0.5, "mode": "bilinear"},
    {"scale_factor": 1.3, "mode": "bicubic"},
    {"scale_factor": 1.3, "mode": "bilinear", "align_corners": True},
    {"scale_factor": 1.7, "mode": "nearest"},
    {"scale_factor": 2, "mode": "bilinear"},
    {"size": (9, 11), "mode": "bicubic"},
]


@pytest.mark.parametrize("options", share.of(INTERPOLATIONS, 4))
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_an_export_of_interpolate_agrees_with_pytorch(options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    x, module = torch.randn(1, 4, 6, 7), Interpolate(**options)
    assert_agrees(result(exported(module, x), x), module(x), 2e-6)


COORDINATES = ("half_pixel", "asymmetric", "pytorch_half_pixel", "half_pixel_symmetric")
SYMMETRIC = {"mode": "linear", "coordinate_transformation_mode": "half_pixel_symmetric"}
RESIZES = [
    *(
        {"scales": SCALES, "mode": "linear", "coordinate_transformation_mode": each}
        for each in COORDINATES
    ),
    {"scales": [1, 1, 2, 2], **SYMMETRIC},
    {"scales": SCALES, "mode": "cubic", "exclude_outside": 1, "cubic_coeff_a": -0.5},
    *(
        {"scales": [1, 1, 1.6, 2.4], "nearest_mode": each}
        for each in ("floor", "ceil", "round_prefer_floor", "round_prefer_ceil")
    ),
    {"scales": [1.7, 2.3], "axes": [3, 2], "mode": "linear"},
    {"scales": [2, 1.5, 1, 1]},
    {"scales": [1.5, 2], "mode": "linear", "shape": (6, 7)},
    {"sizes": [9, 8], "axes": [2, 3], "mode": "linear", "keep_aspect_ratio_policy": "not_larger"},
    {"sizes": [1, 2, 9, 8], "mode": "linear", "keep_aspect_ratio_policy": "not_smaller"},
]


@pytest.mark.parametrize("options", share.of(RESIZES, 8))
def test_a_resize_agrees_with_onnx(options: dict[str, Any]) -> None:
    made = model(**options)
    x = np.random.default_rng(0).standard_normal(options.get("shape", (1, 2, 6, 7)), "float32")
    (expected,) = ReferenceEvaluator(made).run(None, {"x": x})
    actual = result(made.SerializeToString(), torch.tensor(x))
    assert_agrees(actual, torch.tensor(expected), 2e-6)


def test_extents_are_those_of_pytorch() -> None:
    """1.3 as a float32 is below 1.3; 1.3 * 10 is 13 all the same."""
    x, module = torch.randn(1, 1, 10, 10), Interpolate(scale_factor=1.3, mode="bilinear")
    made = model([1, 1, 1.3, 1.3], shape=(1, 1, 10, 10), mode="linear")
    assert_agrees(result(made.SerializeToString(), x), module(x), 2e-6)


@pytest.mark.parametrize("opset", [7, 9])
@pytest.mark.parametrize("factor", [2.0, 1.6])
def test_upsample_repeats_the_element_before(opset: int, factor: float) -> None:
    is_input = opset == 9
    scales = [1.0, 1.0, factor, factor]
    names, more = (["x", "s"], {}) if is_input else (["x"], {"scales": scales})
    node = onnx_models.node("Upsample", names, ["y"], mode="nearest", **more)
    given = [numpy_helper.from_array(np.array(scales, "float32"), "s")] if is_input else []
    made = onnx_models.model([node], given, [onnx_models.value("x", [1, 2, 6, 7])], opset=opset)
    x = torch.randn(1, 2, 6, 7)
    expected = functional.interpolate(x, scale_factor=factor, mode="nearest")
    assert_agrees(result(made.SerializeToString(), x), expected, 0)


@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_with_antialias_it_is_pytorchs(mode: str) -> None:
    scales = [1, 1, 0.5, 0.25]
    options = {"mode": mode, "antialias": 1, "exclude_outside": 1, "cubic_coeff_a": -0.5}
    x = torch.randn(1, 2, 8, 12)
    made = model(scales=scales, shape=[1, 2, 8, 12], **options)
    expected = functional.interpolate(
        x, scale_factor=(0.5, 0.25), mode=f"bi{mode}", antialias=True
    )
    assert_agrees(result(made.SerializeToString(), x), expected, 1e-5)


def test_an_empty_result_is_refused() -> None:
    with pytest.raises(errors.WorkloadError, match=r"'Resize'\): nothing is left"):
        frontend.import_onnx(model(scales=[1, 1, 0.1, 1]).SerializeToString())
