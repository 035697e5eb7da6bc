"""Whole networks: imported, lowered and run on the CPU by TVM, against PyTorch."""

from __future__ import annotations

import copy
import functools

import pytest
import torch
import tvm
from torch.utils import _pytree as pytree
from tvm import relax

from benchmarks.networks import catalogue, onnx_files
from felix import frontend, target
from tests.support import share

#: Largest difference of outputs by the largest output of PyTorch: rounding of sums in float32;
#: of 16 bits, several roundings of 2**-8 and 2**-11 one behind the other.
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 4e-2, torch.float16: 6e-3}


@functools.cache
def small(name, dtype=torch.float32, batch=1):
    """A small network, its inputs and its import, which takes the longest and is not changed."""
    model, args = catalogue.make(name, batch=batch, dtype=dtype, small=True)
    return model, args, frontend.import_torch(model, args)


def run(imported, module, args, kwargs=None, optimization=0):
    """The model's result of a lowered module on the CPU; LLVM need not make it fast."""
    full = tvm.target.Target({**target.parse("llvm").export(), "opt-level": optimization})
    executable = relax.build(
        module, target=full, relax_pipeline=relax.get_pipeline("default_build")
    )
    inputs = imported.calling.flatten(args, kwargs or {})
    outputs = relax.VirtualMachine(executable, tvm.cpu())["main"](*inputs, *imported.parameters)
    return imported.calling.rebuild([torch.from_dlpack(output) for output in outputs])


def assert_agrees(result, reference, tolerance):
    assert pytree.tree_structure(result) == pytree.tree_structure(reference)
    for ours, theirs in zip(
        pytree.tree_leaves(result), pytree.tree_leaves(reference), strict=True
    ):
        if not isinstance(theirs, torch.Tensor):
            assert ours == theirs
            continue
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
        scale = float(theirs.double().abs().max())
        assert float((ours.double() - theirs.double()).abs().max()) <= tolerance * scale


def distances_from_float64(model, args, result):
    """Largest differences from what the model computes in float64."""
    wide = [a.double() if torch.is_tensor(a) and a.is_floating_point() else a for a in args]
    with torch.no_grad():
        exact = copy.deepcopy(model).double()(*wide)
    pairs = zip(pytree.tree_leaves(result), pytree.tree_leaves(exact), strict=True)
    return [float((x.double() - y).abs().max()) for x, y in pairs]


@pytest.mark.parametrize(
    "name, dtype, batch",
    share.of(share.crossed(catalogue.NETWORKS, [torch.float32, torch.bfloat16], [1, 16]), 1),
)
def test_small_networks_agree_with_pytorch(name, dtype, batch):
    model, args, imported = small(name, dtype, batch)
    result = run(imported, frontend.lowered(imported, "llvm"), args)
    with torch.no_grad():
        reference = model(*args)
    try:
        assert_agrees(result, reference, TOLERANCE[dtype])
    except AssertionError:
        print(
            "PyTorch and ours from float64:",
            [distances_from_float64(model, args, x) for x in (reference, result)],
        )
        raise


@pytest.mark.parametrize("name, batch", share.of(share.crossed(catalogue.NETWORKS, [1, 16]), 1))
def test_onnx_exports_of_networks_agree_with_pytorch(name, batch):
    pytest.importorskip("onnx", reason="onnx is an optional extra")
    model, args = catalogue.make(name, batch=batch, small=True)
    imported = frontend.import_onnx(onnx_files.export(model, args))
    with torch.no_grad():
        reference = pytree.tree_leaves(model(*args))
    result = run(imported, frontend.lowered(imported), args)
    assert_agrees(pytree.tree_leaves(result), reference, TOLERANCE[torch.float32])


def test_tasks_of_resnet_are_convolutions_with_their_epilogues():
    model, _, imported = small("resnet50")
    table = frontend.model_tasks(frontend.lowered(imported))
    names = [name for item in table.tasks for name in item.functions]
    assert not table.refused
    n_convolutions = sum(isinstance(m, torch.nn.Conv2d) for m in model.modules())
    calls = sum(t.task.weight for t in table.tasks if "conv2d" in t.functions[0])
    assert calls == n_convolutions
    # Beside them: one pooling, one mean, one linear layer.
    assert sum(t.task.weight for t in table.tasks) == n_convolutions + 3
    assert all("add" in name for name in names if "conv2d" in name)
