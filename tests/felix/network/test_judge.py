"""What ships of an ONNX file is what ONNX Runtime or ONNX's reference computes."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnxruntime", reason="onnxruntime is an optional extra")

import onnx
import torch
from tvm import relax

from felix import errors
from felix.frontend.onnx import operators
from felix.network import assembly, judge
from tests.support import networks
from tests.support.hostile import onnx_models as models

X = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))
ELU = models.model([models.node("Elu", ["x"], ["y"])]).SerializeToString()
RIGHT = torch.nn.functional.elu(X)


@pytest.mark.parametrize("engine", [judge.RUNTIME, judge.REFERENCE])
def test_engines_compute_files_and_bytes(tmp_path: pathlib.Path, engine: str) -> None:
    path = tmp_path / "net.onnx"
    path.write_bytes(ELU)
    for model in (path, ELU):
        found = judge.outputs(model, {"x": X}, engine)
        assert found.by.startswith(engine) and found.outputs is not None
        torch.testing.assert_close(found.outputs[0], RIGHT)


@pytest.mark.parametrize("engine", [judge.RUNTIME, judge.REFERENCE])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_files_of_16_bits_are_judged(engine: str, dtype: torch.dtype) -> None:
    """Also those that have a tensor, an attribute and a branch of such a type."""
    name = str(dtype).removeprefix("torch.").upper()
    kind = onnx.TensorProto.DataType.Value(name)
    branches = {
        f"{branch}_branch": models.graph([models.node(name, ["z"], ["w"])], [], ["w"], kind=kind)
        for branch, name in (("then", "Relu"), ("else", "Neg"))
    }
    nodes = [
        models.node("Cast", ["x"], ["f"], to=models.FLOAT),
        models.node("Cast", ["f"], ["h"], to=kind),
        models.node("Add", ["h", "half"], ["z"]),
        models.node("If", ["yes"], ["y"], **branches),
    ]
    tensors = [
        onnx.helper.make_tensor("half", kind, [1], [0.5]),
        onnx.numpy_helper.from_array(np.array(True), "yes"),
    ]
    made = models.model(nodes, tensors, [models.value("x", [4, 8], kind)], kind=kind)
    x = X.to(dtype)
    found = judge.outputs(made.SerializeToString(), {"x": x}, engine)
    assert found.outputs is not None, found.by
    torch.testing.assert_close(found.outputs[0], (x.float() + 0.5).relu(), rtol=0.01, atol=0.01)


def test_who_does_not_run_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    assert judge.outputs(b"no model", {}).by == "ONNX Runtime does not run it (InvalidProtobuf)"
    monkeypatch.setattr(judge, "LIMIT_S", 0.0)
    assert "takes more than" in judge.outputs(ELU, {"x": X}).by
    monkeypatch.setattr(judge.importlib.util, "find_spec", lambda _: None)
    assert judge.outputs(ELU, {"x": X}) == judge.Judgement(
        None, "ONNX Runtime is not installed: pip install onnxruntime"
    )


@pytest.mark.slow("tunes a network once more")
def test_the_report_says_who_judged(tmp_path: pathlib.Path) -> None:
    fast = networks.optimize(ELU, (X,), tmp_path, trials=1)
    assert str(fast.report.judged_by).startswith("ONNX Runtime")
    assert f"outputs checked against: {fast.report.judged_by}" in str(fast.report)
    torch.testing.assert_close(fast(X), RIGHT)


def test_a_network_that_is_right_is_built_once(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without tuning it is built where it differs from ONNX Runtime, to tell what is wrong."""
    monkeypatch.setattr(assembly, "untuned_outputs", lambda *arguments: pytest.fail("built again"))
    fast = networks.optimize(ELU, (X,), tmp_path, trials=1)
    torch.testing.assert_close(fast(X), RIGHT)


def test_a_wrong_import_does_not_ship(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = {**operators._OWN, "Elu": lambda node: relax.op.exp(node[0])}
    monkeypatch.setattr(operators, "_OWN", wrong)
    with pytest.raises(errors.TuningError, match="differs from the model's"):
        networks.optimize(ELU, (X,), tmp_path, trials=1)


def test_onnx_s_reference_decides(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ask = judge.outputs

    def deceived(model: Any, inputs: Any, engine: str = judge.RUNTIME) -> judge.Judgement:
        found = ask(model, inputs, engine)
        assert found.outputs is not None
        if engine == judge.REFERENCE:
            return found
        return judge.Judgement(tuple(each + 1 for each in found.outputs), found.by)

    monkeypatch.setattr(judge, "outputs", deceived)
    fast = networks.optimize(ELU, (X,), tmp_path, trials=1)
    assert fast.report.judged_by == "ONNX's reference"


def test_values_reach_the_judge(tmp_path: pathlib.Path) -> None:
    model = models.one("ReduceSum", X.numpy(), np.array([1]), keepdims=0)
    model.graph.output[0].type.tensor_type.elem_type = models.FLOAT
    content = model.SerializeToString()
    fast = networks.optimize(content, (X,), tmp_path, trials=1, values={"x1": [1]})
    assert str(fast.report.judged_by).startswith("ONNX Runtime")
    torch.testing.assert_close(fast(X), X.sum(1))
