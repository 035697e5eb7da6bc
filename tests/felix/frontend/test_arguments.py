"""Operators that an import does not compare: each argument, changed, changes the result as
PyTorch's does, or PyTorch keeps the operator."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

from felix import target
from felix.frontend.pytorch import comparison
from felix.network import assembly, imported
from tests.support import share
from tests.support.modules import Called


def _drawn(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


X, ROW, SQUARE = _drawn(4, 6), _drawn(6), _drawn(6, 6)
BATCH, IMAGE, VOLUME = _drawn(2, 3, 4), _drawn(1, 4, 7, 6), _drawn(1, 4, 5, 6, 7)
HEADS = _drawn(1, 2, 4, 8)
CHANNELS = torch.tensor([0.5, 1.5, 2.0, 3.0])
#: A call of each operator that has other arguments than tensors.
CALLS: dict[str, tuple[Any, ...]] = {
    "_adaptive_avg_pool2d.default": (IMAGE, [2, 3]),
    "_adaptive_avg_pool3d.default": (VOLUME, [2, 3, 2]),
    "_log_softmax.default": (X, 1),
    "_native_batch_norm_legit_no_training.default": (
        IMAGE, CHANNELS, CHANNELS, CHANNELS, CHANNELS, 0.1, 1e-5
    ),
    "_softmax.default": (X, 1),
    "_to_copy.default": (X,),
    "add.Scalar": (X, 2.0),
    "add.Tensor": (X, ROW),
    "addmm.default": (ROW, X, SQUARE),
    "avg_pool2d.default": (IMAGE, [3, 3], [2, 2], [1, 1]),
    "avg_pool3d.default": (VOLUME, [3, 3, 3], [2, 2, 2], [1, 1, 1]),
    "baddbmm.default": (BATCH, _drawn(2, 3, 5), _drawn(2, 5, 4)),
    "cat.default": ([X, X], 0),
    "clamp.default": (X, -0.5, 0.5),
    "convolution.default": (
        IMAGE, _drawn(4, 4, 3, 3), CHANNELS, [2, 2], [1, 1], [1, 1], True, [0, 0], 1
    ),
    # Of groups the weight's shape is a consequence, and of output_padding the stride's.
    "convolution.default of groups": (
        IMAGE, _drawn(4, 2, 3, 3), None, [1, 1], [1, 1], [1, 1], False, [0, 0], 2
    ),
    "div.Scalar": (X, 3.0),
    "embedding.default": (SQUARE, torch.tensor([[0, 5], [3, 1]])),
    "expand.default": (X[None], [2, 4, 6]),
    "gelu.default": (X,),
    "hardtanh.default": (X,),
    "layer_norm.default": (X, [6]),
    "layer_norm.default of a scale": (X, [6], ROW, ROW, 1e-5),
    "leaky_relu.default": (X, 0.1),
    "linear.default": (X, SQUARE, ROW),
    "max_pool2d_with_indices.default": (IMAGE, [3, 3], [2, 2], [1, 1]),
    "max_pool3d_with_indices.default": (VOLUME, [3, 3, 3], [2, 2, 2], [1, 1, 1]),
    "mean.dim": (X, [0]),
    "mul.Scalar": (X, 3.0),
    "native_group_norm.default": (IMAGE, CHANNELS, CHANNELS, 1, 4, 42, 2, 1e-5),
    "permute.default": (BATCH, [0, 2, 1]),
    "pow.Tensor_Scalar": (X.abs(), 1.5),
    "reshape.default": (X, [6, 4]),
    "rms_norm.default": (X, [6]),
    "rms_norm.default of a scale": (X, [6], ROW, 1e-5),
    "scaled_dot_product_attention.default": (HEADS, HEADS, HEADS),
    "select.int": (X, 0, 1),
    "slice.Tensor": (X, 0, 1, 4, 1),
    "split.Tensor": (X, 2),
    "split_with_sizes.default": (SQUARE, [1, 5]),
    "squeeze.dim": (BATCH[:1], 0),
    "squeeze.dims": (BATCH[:1], [0]),
    "stack.default": ([X, X], 0),
    "sub.Scalar": (X, 3.0),
    "sub.Tensor": (X, ROW),
    "sum.dim_IntList": (X, [0]),
    "transpose.int": (BATCH, 0, 1),
    "unbind.int": (X, 0),
    "unsqueeze.default": (X, 0),
    "view.default": (X, [6, 4]),
}  # fmt: skip
#: Arguments that say how a result is stored, or count in training or on other machines only.
WITHOUT_EFFECT = frozenset(
    "memory_format implicit padding_idx scale_grad_by_freq sparse momentum cudnn_enable "
    "half_to_float enable_gqa dropout_p p train non_blocking layout device pin_memory".split()
)
#: Those of single cases that follow from the tensors' shapes.
FROM_SHAPES = {
    "convolution.default": {"groups"},
    "convolution.default of groups": {"groups", "output_padding", "transposed"},
    "layer_norm.default of a scale": {"normalized_shape"},
    "native_group_norm.default": {"N", "C", "HxW"},
    "rms_norm.default of a scale": {"normalized_shape"},
}
#: What an argument is changed to: the first for which PyTorch gives something else.
OTHERS: dict[str, tuple[Any, ...]] = {
    "bool": (True, False),
    "int": (0, 1, 2, 3, -1),
    "float": (0.25, 0.9, 2.5),
    "number": (2, 0.25, -0.125),
    "str": ("tanh",),
    "List[int]": (
        [2, 2, 2], [1, 1, 1], [0, 0, 0], [2, 2], [1, 1], [0, 0], [1], [0],
        [1, 2, 0], [1, 2], [2, 4], [4, 6], [2, 12], [3, 4, 6],
    ),
    "dtype": (torch.float64,),
}  # fmt: skip


def _operator(case: str) -> Any:
    packet, overload = case.split()[0].split(".")
    return getattr(getattr(torch.ops.aten, packet), overload)


def _kind(argument: Any) -> str:
    if argument.name == "dtype":
        return "dtype"
    text = str(argument.type)
    return text.removeprefix("Optional[").removesuffix("]") if "Optional" in text else text


def _call(operator: Any, values: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """A call's arguments by position and by name, those left out that are what they are anyhow."""
    arguments = operator._schema.arguments
    by_name = {
        each.name: values[each.name]
        for each in arguments
        if each.kwarg_only and values[each.name] != each.default_value
    }
    return [values[each.name] for each in arguments if not each.kwarg_only], by_name


def _is_same(one: Any, other: Any) -> bool:
    ours, theirs = pytree.tree_leaves(one), pytree.tree_leaves(other)
    if len(ours) != len(theirs):
        return False
    return all(a.dtype == b.dtype and torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def _calls(case: str) -> Iterator[dict[str, Any]]:
    """A call's arguments as they are, and with each changed that is no tensor."""
    operator = _operator(case)
    arguments = operator._schema.arguments
    given = dict(zip((each.name for each in arguments), CALLS[case], strict=False))
    values = {each.name: given.get(each.name, each.default_value) for each in arguments}
    yield values
    for argument in arguments:
        is_varied = argument.name not in WITHOUT_EFFECT | FROM_SHAPES.get(case, set())
        if is_varied and "Tensor" not in str(argument.type):
            yield _changed(operator, values, argument)


def _changed(operator: Any, values: dict[str, Any], argument: Any) -> dict[str, Any]:
    args, options = _call(operator, values)
    expected = operator(*args, **options)
    for other in OTHERS[_kind(argument)]:
        changed = {**values, argument.name: other}
        args, options = _call(operator, changed)
        try:
            if not _is_same(operator(*args, **options), expected):
                return changed
        except (RuntimeError, IndexError, TypeError, ValueError):
            continue
    raise AssertionError(f"{operator}: no other value of {argument.name} has an effect")


@pytest.mark.parametrize("case", share.of(CALLS, 12))
def test_each_argument_counts(case: str) -> None:
    operator = _operator(case)
    calls = [_call(operator, each) for each in _calls(case)]
    leaves, structure = pytree.tree_flatten(calls)
    places = [i for i, each in enumerate(leaves) if isinstance(each, torch.Tensor)]

    def model(*tensors: torch.Tensor) -> list[Any]:
        filled = list(leaves)
        for place, tensor in zip(places, tensors, strict=True):
            filled[place] = tensor
        return [operator(*args, **kw) for args, kw in pytree.tree_unflatten(filled, structure)]

    inputs = [leaves[place] for place in places]
    network = imported.read(Called(model), inputs, {}, target.parse("llvm"))
    results, expected = assembly.untuned_outputs(network), pytree.tree_leaves(model(*inputs))
    for result, wanted in zip(results, expected, strict=True):
        torch.testing.assert_close(result, wanted, rtol=1e-4, atol=1e-5)


def test_all_operators_with_arguments_are_called() -> None:
    names = comparison.CONFIRMED | comparison.FIRST_CONFIRMED
    called = {case.split()[0] for case in CALLS}
    for name in names - called:
        arguments = _operator(name)._schema.arguments
        others = {each.name for each in arguments if "Tensor" not in str(each.type)}
        assert others - WITHOUT_EFFECT == set(), name
    assert called <= names
