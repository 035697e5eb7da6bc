"""Sums of 16-bit floats are in float32 and rounded once, from both frontends, on CPUs and GPUs;
and variances of values far from 0 are right."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest

pytest.importorskip("onnx", reason="onnx is an optional extra")

import torch
import tvm
from torch.nn import functional
from tvm import relax

from felix import errors, frontend, target
from felix.network import executable
from tests.felix.frontend.test_networks import assert_agrees
from tests.support import share
from tests.support.hostile.onnx_models import one
from tests.support.modules import Called

TARGETS = ["llvm", pytest.param("cuda", marks=pytest.mark.gpu)]


def run(imported: frontend.ImportedModel, args: list[torch.Tensor], kind: str) -> torch.Tensor:
    """The first output, of programs that are scheduled as TVM does it."""
    assert not imported.pytorch  # our programs are tested
    full = target.parse(kind)
    built = executable.compile_network(frontend.lowered(imported, full), full)
    device = tvm.cpu() if kind == "llvm" else tvm.cuda()
    network = executable.Executable(built, imported.parameters, device)
    place = "cpu" if kind == "llvm" else kind
    return network([each.to(place) for each in imported.calling.flatten(args, {})])[0].cpu()


ONES = np.ones((1, 3000), "float16")
SUMS = {
    "mean of 400s": (one("GlobalAveragePool", np.zeros((1, 1, 16, 16), "float16")),
                     np.full((1, 1, 16, 16), 400, "float16"), 400),
    "product": (one("MatMul", ONES, ONES.T.copy(), known=1), ONES, 3000),
    "product and sum": (one("Gemm", ONES, ONES.T.copy(), np.ones(1, "float16"), known=2),
                        ONES, 3001),
    "convolution": (one("Conv", np.ones((1, 512, 3, 3), "float16"),
                        np.ones((1, 512, 3, 3), "float16"), known=1),
                    np.ones((1, 512, 3, 3), "float16"), 4608),
    "running sum": (one("CumSum", np.ones(4096, "float16"), np.array(0), known=1),
                    np.ones(4096, "float16"), 4096),
    "norm": (one("ReduceL2", np.zeros((1, 768), "float16"), np.array([1]), known=1),
             np.full((1, 768), 10, "float16"), 277.25),
    "window": (one("AveragePool", np.zeros((1, 1, 16, 16), "float16"), kernel_shape=[16, 16]),
               np.full((1, 1, 16, 16), 400, "float16"), 400),
    "power": (one("LpPool", np.zeros((1, 1, 768, 1), "float16"), kernel_shape=[768, 1]),
              np.full((1, 1, 768, 1), 10, "float16"), 277.25),
    "normalised": (one("LpNormalization", np.zeros((1, 768), "float16")),
                   np.full((1, 768), 300, "float16"), 0.03608),
    "squares": (one("ReduceSumSquare", np.zeros((1, 3000), "float16"), np.array([1]), known=1),
                ONES, 3000),
    "einsum": (one("Einsum", ONES, ONES, equation="ij,kj->ik", known=1), ONES, 3000),
}  # fmt: skip


@pytest.mark.parametrize("kind", TARGETS)
@pytest.mark.parametrize("name", share.of(SUMS, 4))
def test_sums_of_onnx_files(name: str, kind: str) -> None:
    model, x, right = SUMS[name]
    imported = frontend.import_onnx(model.SerializeToString())
    last = run(imported, [torch.from_numpy(x)], kind).flatten()[-1]
    assert last.dtype == torch.float16
    assert float(last) == float(np.float16(right))


#: Summed in 16 bits these give 2,048, 256, infinity or 0.
FUNCTIONS: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], torch.Tensor]] = {
    "window": (lambda x: functional.avg_pool2d(x, 16), torch.full((1, 1, 16, 16), 400.0)),
    "adaptive window": (lambda x: functional.adaptive_avg_pool2d(x, 1),
                        torch.full((1, 1, 16, 16), 400.0)),
    "running sum": (lambda x: x.cumsum(-1), torch.ones(2, 4096)),
    "running product": (lambda x: x.cumprod(-1), torch.full((2, 64), 1.01)),
    "mean": (lambda x: x.mean(-1), torch.full((2, 768), 400.0)),
    "einsum": (lambda x: torch.einsum("ij,kj->ik", x, x), torch.ones(2, 4096)),
    "softmax": (lambda x: x.softmax(-1), torch.zeros(2, 4096)),
}  # fmt: skip


@pytest.mark.parametrize("kind", TARGETS)
@pytest.mark.parametrize("dtype", share.of([torch.float16, torch.bfloat16], 1))
@pytest.mark.parametrize("name", share.of(FUNCTIONS, 3))
def test_sums_of_pytorch(name: str, dtype: torch.dtype, kind: str) -> None:
    function, x = FUNCTIONS[name]
    x = x.to(dtype)
    actual = run(frontend.import_torch(Called(function), (x,)), [x], kind)
    expected = function(x.float()).to(dtype)
    torch.testing.assert_close(actual, expected, rtol=torch.finfo(dtype).eps, atol=0)


FAR: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "variance": lambda x: x.var(-1),
    "layer norm": lambda x: functional.layer_norm(x, x.shape[-1:]),
    "group norm": lambda x: functional.group_norm(x, 2),
    "instance norm": lambda x: functional.instance_norm(x),
}


@pytest.mark.parametrize("kind", TARGETS)
@pytest.mark.parametrize("name", FAR)
def test_variances_of_values_far_from_0(name: str, kind: str) -> None:
    x = torch.randn(2, 4, 8, 8, generator=torch.Generator().manual_seed(0)) + 1e4
    actual = run(frontend.import_torch(Called(FAR[name]), (x,)), [x], kind)
    assert_agrees(actual, FAR[name](x.double()).float(), 3e-3)


@pytest.mark.parametrize("kind", TARGETS)
def test_an_instance_norm_of_values_far_from_0(kind: str) -> None:
    rng = np.random.default_rng(0)
    x = (rng.standard_normal((1, 2, 8, 8)) + 1e4).astype("float32")
    scale, bias = np.ones(2, "float32"), np.zeros(2, "float32")
    model = one("InstanceNormalization", x, scale, bias, known=2)
    wide = x.astype("float64")
    deviation = wide - wide.mean((2, 3), keepdims=True)
    right = deviation / np.sqrt(deviation.var((2, 3), keepdims=True) + 1e-5)
    imported = frontend.import_onnx(model.SerializeToString())
    actual = run(imported, [torch.from_numpy(x)], kind)
    assert_agrees(actual, torch.from_numpy(right.astype("float32")), 3e-3)


@pytest.mark.parametrize("operation", ["sum", "prod", "max"])
def test_a_program_that_sums_in_16_bits_is_refused(operation: str) -> None:
    """As it would be if an import forgot the wide sum of an operator."""
    x = relax.Var("x", relax.TensorType([4, 8], "float16"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            result = builder.emit(getattr(relax.op, operation)(x, axis=1))
            output = builder.emit_output(relax.Tuple([result]))
        builder.emit_func_output(output)
    model = frontend.import_torch(Called(lambda x: x + 1), (torch.zeros(4, 8).half(),))
    model = dataclasses.replace(model, mod=builder.finalize())
    if operation == "max":
        frontend.lowered(model, "llvm")
        return
    with pytest.raises(errors.WorkloadError, match="sums 16-bit floats in 16 bits"):
        frontend.lowered(model, "llvm")
