"""Empty tensors, rare types, zeros with a sign, NaN that is compared, integers beyond floats."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from torch import nn
from torch.nn import functional

from felix import errors, frontend, target
from felix.network import assembly, imported
from tests.felix.frontend.test_onnx_reading import result
from tests.support import share
from tests.support.hostile import onnx_models as models
from tests.support.hostile.onnx_models import one
from tests.support.modules import Called

NAN, INF = math.nan, math.inf
X = torch.tensor([1.0, NAN, 2.0, INF, 0.0, -0.0, 3.0, 4.0])
ZEROS = torch.tensor([[-0.0, 0.0], [0.0, -0.0]])
ROWS = torch.arange(6.0).reshape(3, 2)
_attention = functional.scaled_dot_product_attention


def _normalised(dtype: torch.dtype) -> Callable[[torch.Tensor], torch.Tensor]:
    torch.manual_seed(0)
    convolution, norm = nn.Conv2d(3, 4, 3).eval(), nn.BatchNorm2d(4).eval()
    return lambda x: norm(convolution(3 * x).to(dtype).float())


def _drawn(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype)


#: A model, its inputs, and the operators that PyTorch runs of it.
PYTORCH: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...], set[str]]] = {
    "norm of integers": (_normalised(torch.int32), (_drawn(1, 3, 6, 6),), set()),
    "norm of halves": (_normalised(torch.float16), (_drawn(1, 3, 6, 6),), set()),
    "running sum of nothing": (
        lambda x, e: torch.cat([e.cumsum(0), x]), (ROWS, torch.zeros(0, 2)), {"cumsum"}
    ),
    "joined with nothing": (lambda x: torch.cat([x[:0], x]), (ROWS,), set()),
    "mean of nothing": (lambda x: x[:0].mean(0), (ROWS,), {"mean"}),
    "nothing beside something": (lambda x: (x[:0], x[1:] + 1), (ROWS,), set()),
    "product of nothing": (
        lambda x, e: (e @ x.T, x.T[:, :0] @ e), (ROWS, torch.zeros(0, 2)), set()
    ),
    "split in nothing": (lambda x: x.split([1, 0, 2]), (ROWS,), {"split_with_sizes"}),
    "compared with itself": (lambda x: (x == x, x != x, ~(x == x.clone())), (X,), set()),
    "compared with its view": (lambda x: torch.where(x == x.view(8), x, 0.0), (X,), set()),
    "narrow, compared": (lambda x: (x == x, x != x, x != 1.0), (X.bfloat16(),), set()),
    "zeros in order": (
        lambda x: (x.argmax(1), x.argmin(1), x.max(1)[1]), (ZEROS,), set()
    ),
    "the largest of zeros": (lambda x: x.topk(1)[1], (ZEROS,), set()),
    "norms of large halves": (
        lambda x: (x.norm(dim=1), functional.normalize(x, dim=1),
                   torch.linalg.vector_norm(x, 2, 1, dtype=torch.float32)),
        (1000 * _drawn(3, 50, dtype=torch.float16),), set()
    ),
    "norms of small halves": (
        lambda x: 1e4 * torch.linalg.vector_norm(x, 4, 1), (1e-2 * _drawn(3, 50).half(),), set()
    ),
    "a norm of one element": (lambda x: x.norm(4, dim=0), (1e15 * _drawn(1, 3),), set()),
    "halves scaled by a wide number": (
        lambda x, s: (x * s, x / s), (_drawn(8).half(), torch.tensor(1e5)), set()
    ),
    "remainders of halves by a number": (
        lambda x: (torch.remainder(x, 0.1), torch.fmod(x, 0.1), x // 0.1),
        (0.1 * torch.arange(1, 9).half(),), set()
    ),
    "the middle of narrow ones": (
        lambda x: x.median(), (_drawn(5).bfloat16(),), {"median"}
    ),
    "means of integers": (
        lambda x: functional.avg_pool2d(x, 2), (torch.arange(-8, 8).view(1, 4, 4),), {"avg_pool2d"}
    ),
    "negative bytes": (lambda x: -x, (torch.tensor([1, 2], dtype=torch.uint8),), {"neg"}),
    "attention to one batch": (
        lambda q, k: _attention(q, k, k),
        (_drawn(2, 3, 4, 8), _drawn(1, 3, 4, 8)),
        {"scaled_dot_product_attention"},
    ),
    "attention of float64": (
        lambda q, m: _attention(q, q, q, m),
        (_drawn(1, 2, 4, 8, dtype=torch.float64), _drawn(4, 4, dtype=torch.float64)),
        set(),
    ),
}  # fmt: skip


#: Those that PyTorch runs on CPUs alone or otherwise there, or whose parameters are there.
_OF_CPUS = {"norm of integers", "norm of halves", "means of integers", "the largest of zeros"}


@pytest.mark.parametrize("kind", ["llvm", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("name", share.of(PYTORCH, 14))
def test_pytorchs_values(name: str, kind: str) -> None:
    call, inputs, left = PYTORCH[name]
    if kind == "cuda":
        if name in _OF_CPUS:
            return
        inputs = tuple(each.cuda() for each in inputs)
    network = imported.read(Called(call), inputs, {}, target.parse(kind))
    results, expected = assembly.untuned_outputs(network), call(*inputs)
    expected = [expected] if isinstance(expected, torch.Tensor) else list(expected)
    for ours, wanted in zip(results, expected, strict=True):
        torch.testing.assert_close(ours, wanted, rtol=1e-3, atol=1e-5, equal_nan=True)
    assert {each.split(".")[1] for each in network.imported.pytorch} == left


_WHOLE = np.array([0, 2, 3, 2, 1, -1], "int32")
_LARGE = np.array(2**53 + 1, "int64")
_SPECIAL = np.array([-INF, NAN, 2.0, 0.5], "float32")


#: An operator, its operands of which the last may be known, its options, and what is right.
ONNX: list[tuple[str, list[np.ndarray], dict[str, Any], Any]] = [
    ("Pow", [_WHOLE, np.array([32, 33, 32, -1, -5, -3], "int32")], {},
     [0, 0, -501334399, 0, 1, -1]),
    ("Pad", [np.array([5]), np.array([1, 1]), _LARGE], {"known": 2}, [_LARGE, 5, _LARGE]),
    ("ThresholdedRelu", [_SPECIAL], {"alpha": 1.0}, [0, 0, 2, 0]),
    ("Sign", [_SPECIAL], {}, [-1, NAN, 1, 1]),
    ("Equal", [_SPECIAL, _SPECIAL], {}, [True, False, True, True]),
    ("ArgMax", [ZEROS.numpy()], {"axis": 1, "keepdims": 0}, [0, 0]),
    ("Unsqueeze", [_SPECIAL], {"opset": 11, "axes": [0]}, [_SPECIAL]),
]  # fmt: skip


@pytest.mark.parametrize("case", ONNX, ids=lambda case: case[0])
def test_onnx_values(case: tuple[str, list[np.ndarray], dict[str, Any], Any]) -> None:
    operator, operands, options, expected = case
    given = operands[: len(operands) - options.get("known", 0)]
    np.testing.assert_array_equal(result(one(operator, *operands, **options), *given), expected)


def test_the_largest_of_nothing() -> None:
    nodes = [
        models.node("Slice", ["x", "zero", "zero"], ["none"]),
        models.node("ReduceMax", ["none"], ["y"], keepdims=0, axes=[0]),
    ]
    zero = onnx.numpy_helper.from_array(np.zeros(1, "int64"), "zero")
    given = [models.value("x", [3, 2])]
    model = models.model(nodes, [zero], given, opset=13, kind=onnx.TensorProto.UNDEFINED)
    np.testing.assert_array_equal(result(model, ROWS.numpy()), [-INF, -INF])


def test_shapes_that_values_decide_are_refused() -> None:
    with pytest.raises(errors.WorkloadError, match="a tensor whose shape depends on values"):
        frontend.import_torch(Called(lambda x: torch.combinations(x)), (X,))


def test_fractions_of_integers_are_refused() -> None:
    model = one("Gemm", np.ones((1, 2), "int32"), np.ones((2, 1), "int32"), alpha=0.5)
    with pytest.raises(errors.WorkloadError, match=r"'Gemm'.*integers by the fraction 0.5"):
        frontend.import_onnx(model.SerializeToString())


@pytest.mark.parametrize("is_nested", [False, True])
def test_functions_of_a_file_have_defaults(is_nested: bool) -> None:
    domain, kind = "own", onnx.AttributeProto.FLOAT
    steep = models.node("LeakyRelu", ["a"], ["b"])
    steep.attribute.add(name="alpha", ref_attr_name="slope", type=kind)
    opsets = [onnx.helper.make_opsetid("", 16), onnx.helper.make_opsetid(domain, 1)]
    inner = onnx.helper.make_function(
        domain, "Inner", ["a"], ["b"], [steep], opsets, [],
        attribute_protos=[onnx.helper.make_attribute("slope", 0.25)],
    )  # fmt: skip
    call = onnx.helper.make_node("Inner", ["a"], ["b"], domain=domain)
    outer = onnx.helper.make_function(domain, "Outer", ["a"], ["b"], [call], opsets)
    name = "Outer" if is_nested else "Inner"
    node = onnx.helper.make_node(name, ["x"], ["y"], domain=domain)
    model = models.model([node], [], [models.value("x", [2])], opset=16)
    model.functions.extend([inner, outer])
    model.opset_import.append(onnx.helper.make_opsetid(domain, 1))
    np.testing.assert_array_equal(result(model, np.float32([-4, 4])), [-1, 4])


def test_a_grid_of_a_known_size() -> None:
    theta = _drawn(2, 2, 3)
    model = one("AffineGrid", theta.numpy(), np.array([2, 3, 4, 5]), opset=20, known=1)
    expected = functional.affine_grid(theta, [2, 3, 4, 5], align_corners=False)
    np.testing.assert_allclose(result(model, theta.numpy()), expected.numpy(), atol=1e-6)


def test_a_known_choice_of_elements() -> None:
    chosen = np.array([True, False, True])
    model = one("Compress", ROWS.numpy(), chosen, axis=0, known=1)
    np.testing.assert_array_equal(result(model, ROWS.numpy()), ROWS.numpy()[chosen])


def test_groups_have_a_scale_each_before_opset_21() -> None:
    x, scale, shift = _drawn(2, 4, 3), _drawn(2), _drawn(2) + 1
    operands = [each.numpy() for each in (x, scale, shift)]
    model = one("GroupNormalization", *operands, num_groups=2, opset=18)
    expected = functional.group_norm(x, 2, scale.repeat_interleave(2), shift.repeat_interleave(2))
    np.testing.assert_allclose(result(model, *operands), expected.numpy(), atol=1e-5)


def test_before_opset_11_a_shorter_axis_takes_the_element_behind() -> None:
    x = np.arange(1, 9, dtype="float32").reshape(1, 1, 2, 4)
    model = one("Resize", x, np.float32([1, 1, 0.6, 0.6]), opset=10, known=1)
    np.testing.assert_array_equal(result(model, x), [[[[1, 3]]]])
