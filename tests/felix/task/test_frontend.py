"""Models into tasks: PyTorch modules; ONNX where the package is installed."""

from __future__ import annotations

import itertools
import logging
import sys

import numpy as np
import pytest
import torch
import tvm

import felix
from felix import errors, frontend


class Net(torch.nn.Module):
    """Three convolutions with batch norm and relu (two alike), pooling, a linear layer."""

    def __init__(self):
        super().__init__()
        channels = [3, 8, 8, 8]
        self.convs = torch.nn.ModuleList(
            torch.nn.Conv2d(i, o, 3, padding=1, bias=False)
            for i, o in itertools.pairwise(channels)
        )
        self.norms = torch.nn.ModuleList(torch.nn.BatchNorm2d(o) for o in channels[1:])
        self.head = torch.nn.Linear(8, 10)

    def forward(self, x):
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = torch.relu(norm(conv(x)))
        x = torch.nn.functional.max_pool2d(x, 2)
        return torch.softmax(self.head(x.mean((2, 3))), -1)


@pytest.fixture(scope="module")
def tasks():
    torch.manual_seed(0)
    return felix.extract_tasks(Net(), (torch.randn(1, 3, 12, 12),))


def named(tasks, *words):
    (match,) = [task for task in tasks if all(word in task.name for word in words)]
    return match


def test_operators_are_fused_and_repeated_ones_merged(tasks):
    convs = [task for task in tasks if "conv2d" in task.name]
    assert [task.weight for task in convs] == [2, 1]
    assert all("relu" in task.name for task in convs)
    assert convs[0].flops >= 2 * 12 * 12 * 8 * 8 * 9
    assert convs[1].flops >= 2 * 12 * 12 * 3 * 8 * 9
    linear = named(tasks, "matmul", "add")
    assert linear.flops == 2 * 8 * 10 + 10
    assert linear.min_bytes == 4 * (8 + 8 * 10 + 10 + 10)
    assert named(tasks, "max_pool2d").flops == 8 * 6 * 6 * 4
    assert not [task for task in tasks if "transpose" in task.name]
    assert len({task.key for task in tasks}) == len(tasks)


def test_tasks_are_sorted_by_their_share_of_the_work(tasks):
    work = [task.flops * task.weight for task in tasks]
    assert work == sorted(work, reverse=True)


def test_a_fused_task_computes_what_the_layer_computes(tasks):
    linear = named(tasks, "matmul", "add")
    rng = np.random.default_rng(0)
    shapes = [[int(e) for e in p.ty.shape] for p in linear.func.params]
    arrays = [rng.random(shape, "float32") for shape in shapes]
    arguments = [tvm.runtime.tensor(array) for array in arrays]
    tvm.tirx.build(linear.mod, linear.target)["main"](*arguments)
    x, weight, bias = arrays[:3]
    assert weight.shape == (10, 8)  # as torch stores it: no task transposes it
    np.testing.assert_allclose(arguments[-1].numpy(), x @ weight.T + bias, rtol=1e-5)


def test_target_and_mode_are_respected():
    model = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Dropout(0.5)).train()
    tasks = felix.extract_tasks(model, [torch.randn(2, 4)], "cuda -arch sm_80")
    assert model.training
    assert {task.target.kind.name for task in tasks} == {"cuda"}
    assert not any("dropout" in task.name for task in tasks)


def test_keyword_inputs_are_passed_on():
    class Scale(torch.nn.Module):
        def forward(self, x, *, scale):
            return x * scale

    tasks = felix.extract_tasks(Scale(), (torch.randn(3, 5),), kwargs={"scale": torch.ones(5)})
    assert [task.flops for task in tasks] == [15]


def test_programs_felix_does_not_tune_are_left_out_and_logged(caplog):
    places = torch.tensor([[0, 1, 2, 0]] * 3)

    class Scattered(torch.nn.Module):
        def forward(self, x):
            return torch.relu(x).scatter(1, places, x)

    with caplog.at_level(logging.WARNING, "felix.frontend"):
        tasks = felix.extract_tasks(Scattered(), (torch.ones(3, 4),))
    assert [task.flops for task in tasks] == [12]
    (record,) = caplog.records
    assert record.action == "skip_task"
    assert "scatter_elements is left untuned" in record.getMessage()


def test_embeddings_are_tuned_with_indices_clamped_to_the_table():
    class Lookup(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.table = torch.nn.Embedding(10, 4)

        def forward(self, index):
            return torch.relu(self.table(index))

    tasks = felix.extract_tasks(Lookup(), (torch.tensor([1, 2, 3]),))
    (gather,) = (task for task in tasks if "take" in task.name)
    assert ", 0), 9), v_ax1]" in gather.func.script()
    assert gather.min_bytes == 3 * 4 + 2 * 3 * 4 * 4


@pytest.mark.parametrize(
    "model, args, error",
    [
        ("not a model", (), errors.WorkloadError),
        (torch.nn.Linear(4, 6), (torch.randn(2, 5),), errors.WorkloadError),
        (torch.nn.Linear(4, 6), (), errors.WorkloadError),
    ],
)
def test_models_that_cannot_be_imported_are_one_error(model, args, error):
    with pytest.raises(error) as caught:
        felix.extract_tasks(model, args)
    assert "\n" not in str(caught.value)


def test_the_target_is_checked_before_the_model():
    with pytest.raises(errors.TargetError):
        felix.extract_tasks("not a model", (), "nonsense")


def test_without_onnx_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(errors.WorkloadError, match="pip install onnx"):
        frontend.extract_tasks_onnx("model.onnx")


def test_onnx_models(tmp_path):
    onnx = pytest.importorskip("onnx", reason="onnx is an optional extra")
    helper, float32 = onnx.helper, onnx.TensorProto.FLOAT
    weight = onnx.numpy_helper.from_array(np.ones((8, 5), "float32"), "w")
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"]), helper.make_node("Relu", ["y"], ["z"])],
        "g",
        [helper.make_tensor_value_info("x", float32, ["n", 8])],
        [helper.make_tensor_value_info("z", float32, ["n", 5])],
        [weight],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())
    for source in (path, str(path), path.read_bytes()):
        tasks = frontend.extract_tasks_onnx(source, shapes={"x": (3, 8)})
        assert [task.flops for task in tasks] == [2 * 3 * 8 * 5 + 3 * 5]
    with pytest.raises(errors.WorkloadError, match="cannot be read"):
        frontend.extract_tasks_onnx(tmp_path / "absent.onnx")
    with pytest.raises(errors.WorkloadError):
        frontend.extract_tasks_onnx(b"not an onnx model")
