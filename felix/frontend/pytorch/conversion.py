"""Conversions of ATen operators to Relax: what they have in common, other element types than
TVM's, indexing, attention."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from tvm import relax

from felix import errors
from felix.frontend import casts, layers
from felix.frontend.pytorch.calling import dtype_name
from felix.tir import rounding

#: A node of the graph and TVM's importer -> the Relax expression of the node's value.
Converter = Callable[[torch.fx.Node, Any], Any]
#: An importer's conversions as TVM has them.
_OF_TVM = "felix_conversions_of_tvm"


def by_tvm(name: str, node: torch.fx.Node, importer: Any) -> Any:
    """The value of a node by TVM's conversion of the operator of this name."""
    if not hasattr(importer, _OF_TVM):  # a table of hundreds, of which import replaces some
        setattr(importer, _OF_TVM, importer.create_convert_map())
    return getattr(importer, _OF_TVM)[name](node)


def arguments(node: torch.fx.Node, importer: Any, count: int) -> list[Any]:
    """A node's first operands by position, with those that it leaves out as None."""
    values = [importer._retrieve_args(argument) for argument in node.args[:count]]
    return values + [None] * (count - len(values))


def cast(importer: Any, value: Any, dtype: str) -> Any:
    """A value in an element type; itself, if it has that."""
    return layers.cast(importer.block_builder.emit, value, dtype)


@contextlib.contextmanager
def standing_for(importer: Any, values: Mapping[torch.fx.Node, Any]) -> Iterator[None]:
    """Until the block ends these values are those of their nodes."""
    before = {node: importer.env[node] for node in values}
    importer.env.update(values)
    try:
        yield
    finally:
        importer.env.update(before)


# Conversions of ATen operators that PyTorch computes in other element types than TVM.
#
# Operators of 16 bits that PyTorch computes in float32 are computed so. Operands of several
# types are cast to the one that they have in common: TVM gives a number the type of the tensor
# beside it.

#: Operators that PyTorch computes in float32 for tensors of 16 bits.
_IN_FLOAT32 = frozenset(
    """
    _adaptive_avg_pool1d.default _log_softmax.default
    _softmax.default acos.default acosh.default adaptive_avg_pool1d.default
    affine_grid_generator.default asin.default asinh.default atan.default atan2.default
    atanh.default avg_pool1d.default batch_norm.default celu.default cos.default cosh.default
    cross_entropy_loss.default cumprod.default cumsum.default erf.default exp.default
    gelu.default grid_sampler_2d.default group_norm.default hardsigmoid.default
    hardswish.default instance_norm.default leaky_relu.default linalg_vector_norm.default
    log.default log10.default log2.default log_softmax.int logaddexp.default mean.default
    mean.dim median.default median.dim pow.Scalar pow.Tensor_Scalar
    prelu.default prod.default reciprocal.default roi_align.default round.decimals rsqrt.default
    rsub.Scalar rsub.Tensor sigmoid.default silu.default sin.default sinh.default softmax.int
    softplus.default softshrink.default softsign.default sqrt.default square.default
    std.correction sum.default sum.dim_IntList tan.default tanh.default upsample_bicubic2d.vec
    upsample_bilinear2d.vec var.correction
    """.split()
)
#: Operators of two operands, which PyTorch computes in the type that they have in common;
_PROMOTED = (
    "add.Scalar", "sub.Scalar", "mul.Scalar", "div.Scalar",
    "add.Tensor", "sub.Tensor", "mul.Tensor", "div.Tensor", "maximum.default", "minimum.default",
    "pow.Tensor_Tensor", "eq.Scalar", "eq.Tensor", "ne.Scalar", "ne.Tensor", "lt.Scalar",
    "lt.Tensor", "le.Scalar", "le.Tensor", "gt.Scalar", "gt.Tensor", "ge.Scalar", "ge.Tensor",
)  # fmt: skip
#: what they are of two booleans.
_LOGICAL: dict[str, Callable[[Any, Any], Any]] = {
    "add.Tensor": relax.op.logical_or,
    "mul.Tensor": relax.op.logical_and,
    "maximum.default": relax.op.logical_or,
    "minimum.default": relax.op.logical_and,
}
#: Others whose first operand has the result's type before they are computed.
_WIDENING = ("clamp.default",)


#: Casts that a model has.
_CASTS = ("_to_copy.default", "to.dtype", "to.dtype_layout")


def _joined(name: str) -> Converter:
    """TVM's conversion of an operator of a list of tensors, given all in the result's type."""

    def convert(node: torch.fx.Node, importer: Any) -> Any:
        tensors: Any = node.args[0]
        dtype = result_dtype(node)
        operands = {each: cast(importer, importer.env[each], dtype) for each in tensors}
        with standing_for(importer, operands):
            return by_tvm(name, node, importer)

    return convert


def _widened(name: str) -> Converter:
    """TVM's conversion of an operator, given its operands of 16 bits in float32 where PyTorch
    computes so, else its first operand in the type of its result."""

    def convert(node: torch.fx.Node, importer: Any) -> Any:
        value = node.meta["val"]
        is_one = isinstance(value, torch.Tensor)
        dtypes = [dtype_name(each.dtype) for each in ([value] if is_one else value)]
        halves = [each for each in node.all_input_nodes if _is_half(importer.env[each])]
        if name in _IN_FLOAT32 and halves:
            wide = "float64" if dtypes[0] == "float64" else "float32"
            operands = {each: cast(importer, importer.env[each], wide) for each in halves}
        else:
            first: Any = node.args[0]
            operands = {first: cast(importer, importer.env[first], dtypes[0])} if is_one else {}
        with standing_for(importer, operands):
            result = by_tvm(name, node, importer)
        if is_one:
            return cast(importer, result, dtypes[0])
        fields = [_field(importer, result, number) for number in range(len(dtypes))]
        return relax.Tuple([cast(importer, *each) for each in zip(fields, dtypes, strict=True)])

    return convert


def _is_half(value: Any) -> bool:
    return isinstance(value.ty, relax.TensorType) and str(value.ty.dtype) in rounding.HALF


def _field(importer: Any, value: Any, number: int) -> Any:
    """One of a tuple's tensors."""
    if isinstance(value, relax.Tuple):
        return value.fields[number]
    return importer.block_builder.emit(relax.TupleGetItem(value, number))


def _model_cast(name: str) -> Converter:
    """TVM's conversion of a cast; one to 16 bits is marked as the model's."""

    def convert(node: torch.fx.Node, importer: Any) -> Any:
        dtype = result_dtype(node)
        if dtype not in rounding.HALF:
            return by_tvm(name, node, importer)
        (x,) = arguments(node, importer, 1)
        return casts.emit_cast(importer.block_builder.emit, x, dtype)

    return convert


def promoted(name: str) -> Converter:
    """TVM's conversion of an operator of two operands, given both in their common type."""

    def convert(node: torch.fx.Node, importer: Any) -> Any:
        dtype = common_type(name, node)
        if dtype is torch.bool and name in _LOGICAL:
            return importer.block_builder.emit(_LOGICAL[name](*arguments(node, importer, 2)))
        narrow = dtype_name(dtype)
        wide = "float32" if _has_scale(name, node, narrow) else narrow
        operands = {
            each: cast(importer, importer.env[each], wide)
            for each in node.args[:2]
            if isinstance(each, torch.fx.Node)
        }
        with standing_for(importer, operands):
            result = by_tvm(name, node, importer)
        return result if wide == narrow else cast(importer, result, narrow)

    return convert


def _has_scale(name: str, node: torch.fx.Node, dtype: str) -> bool:
    """Whether a tensor of 16 bits is scaled by a wider number, which PyTorch does not round where
    it is on the CPU."""
    scale = node.args[1] if name in ("mul.Tensor", "div.Tensor") else None
    if not isinstance(scale, torch.fx.Node) or dtype not in rounding.HALF:
        return False
    value = scale.meta["val"]
    is_wide = value.dtype in (torch.float32, torch.float64)
    return value.ndim == 0 and value.device.type == "cpu" and is_wide


def common_type(name: str, node: torch.fx.Node) -> torch.dtype:
    """In which an operator of two operands computes."""
    values: list[Any] = [
        each.meta["val"] if isinstance(each, torch.fx.Node) else each for each in node.args[:2]
    ]
    dtype = torch.result_type(*values)
    is_whole = not dtype.is_floating_point and not dtype.is_complex
    divides = name in ("div.Scalar", "div.Tensor")
    return torch.get_default_dtype() if divides and is_whole else dtype


def result_dtype(node: torch.fx.Node) -> str:
    """TVM's name of the type of a node's value."""
    return dtype_name(node.meta["val"].dtype)


#: The conversions by the operators' names.
TYPED: Mapping[str, Converter] = {
    **{name: _widened(name) for name in (*_IN_FLOAT32, *_WIDENING)},
    **{name: promoted(name) for name in _PROMOTED},
    **{name: _model_cast(name) for name in _CASTS},
    **{name: _joined(name) for name in ("cat.default", "stack.default")},
}


# Conversions of PyTorch's indexing.
#
# With indices that count from the end TVM reads outside of the tensor, and several indices
# behind a whole dimension give it their outer product.


def _select(node: torch.fx.Node, importer: Any) -> Any:
    x, dim, index = arguments(node, importer, 3)
    index += int(x.ty.shape[dim]) if index < 0 else 0
    return importer.block_builder.emit(relax.op.take(x, relax.const(index, "int64"), axis=dim))


def _take(node: torch.fx.Node, importer: Any) -> Any:
    x, indices = arguments(node, importer, 2)
    size = math.prod(int(extent) for extent in x.ty.shape)
    emit = importer.block_builder.emit
    flat = emit(relax.op.reshape(x, [size]))
    indices = layers.from_the_beginning(emit, indices, size)
    return emit(relax.op.take(flat, indices, axis=0))


def _index(node: torch.fx.Node, importer: Any) -> Any:
    """x[i, :, j] with tensors of integers, which are broadcast against each other.

    Where the dimensions that they index are neighbours, theirs take the place of these; otherwise
    theirs are the first ones.
    """
    x, indices = arguments(node, importer, 2)
    if not all(each is None or str(each.ty.dtype).startswith("int") for each in indices):
        return by_tvm("index.Tensor", node, importer)  # masks
    emit, shape = importer.block_builder.emit, [int(extent) for extent in x.ty.shape]
    axes = [axis for axis, each in enumerate(indices) if each is not None]
    chosen = [layers.from_the_beginning(emit, indices[axis], shape[axis]) for axis in axes]
    if len(axes) == 1:
        return emit(relax.op.take(x, chosen[0], axis=axes[0]))
    left = [axis for axis in range(len(shape)) if axis not in axes]
    if axes[-1] >= len(axes):
        x = emit(relax.op.permute_dims(x, [*axes, *left]))
    result = emit(relax.op.index_tensor(x, chosen))
    n_before = axes[0] if axes[-1] - axes[0] == len(axes) - 1 else 0
    if not n_before:
        return result
    n_chosen = len(result.ty.shape) - len(left)
    places = [*range(n_chosen, n_chosen + n_before), *range(n_chosen)]
    places += range(n_chosen + n_before, len(result.ty.shape))
    return emit(relax.op.permute_dims(result, places))


INDEXING: Mapping[str, Converter] = {
    "select.int": _select,
    "index.Tensor": _index,
    "take.default": _take,
}


def attention(node: torch.fx.Node, importer: Any) -> Any:
    """The Relax expression of a node that is an attention."""
    args: Any = node.args
    options: Any = node.kwargs
    return _attention(importer, *args, **options)


def _attention(
    importer: Any,
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """With the parameters of PyTorch's operator."""
    if dropout_p:
        raise errors.WorkloadError(
            "the PyTorch model cannot be imported: its attention has a dropout of "
            f"{dropout_p}; pass 0 in inference"
        )
    mask = None if attn_mask is None else importer.env[attn_mask]
    tensors = [importer.env[each] for each in (query, key, value)]
    return layers.attention(importer.block_builder.emit, tensors, mask, scale, is_causal)
