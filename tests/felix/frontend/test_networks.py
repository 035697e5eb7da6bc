"""Whole networks: imported, lowered and run on the CPU by TVM, against PyTorch."""

from __future__ import annotations

import pytest
import torch
import tvm
from torch.utils import _pytree as pytree
from tvm import relax

from benchmarks.networks import catalogue
from felix import frontend, target

#: Largest difference of outputs by the largest output of PyTorch: rounding of sums in float32;
#: of 16 bits, several roundings of 2**-8 and 2**-11 one behind the other.
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 4e-2, torch.float16: 6e-3}


def run(imported, module, args, kwargs=None):
    """The model's result of a lowered module on the CPU."""
    executable = relax.build(
        module, target=target.parse("llvm"), relax_pipeline=frontend.build_pipeline()
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


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", catalogue.NETWORKS)
def test_small_networks_agree_with_pytorch(name, dtype):
    model, args = catalogue.make(name, dtype=dtype, small=True)
    imported = frontend.import_torch(model, args)
    module = frontend.lowered(imported, "llvm")
    with torch.no_grad():
        reference = model(*args)
    assert_agrees(run(imported, module, args), reference, TOLERANCE[dtype])
