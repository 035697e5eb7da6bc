"""Conversions of rare operators, compared with PyTorch before they are used.

A conversion may give something else than the operator: it overlooks an argument, has another rule
for ties, or TVM's lowering changes it. For operators that networks are made of tests would find
that (`CONFIRMED`). Another one is converted alone, built for the CPU without a schedule, and run
on random operands of the network's types and shapes, of which too large ones are cut. PyTorch
keeps it if the results differ.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast

import torch
import tvm
from torch.utils import _pytree as pytree
from tvm import relax
from tvm.relax.frontend.torch import exported_program_translator as translator

from felix.frontend import folding, imported, numerics, rewriting
from felix.frontend.pytorch import calling, conversion, export
from felix.tir import nan

#: Conversions of an importer by the operators' names.
Conversions = Callable[[Any], Mapping[str, conversion.Converter]]

#: Operators that are not compared; those of the common networks, and what is costly besides.
CONFIRMED = frozenset({
    "_adaptive_avg_pool2d.default", "_adaptive_avg_pool3d.default", "_log_softmax.default",
    "_softmax.default", "_to_copy.default",
    "add.Scalar", "add.Tensor", "addmm.default", "alias.default",
    "avg_pool2d.default", "avg_pool3d.default", "baddbmm.default",
    "bmm.default", "cat.default", "clamp.default", "clone.default",
    "contiguous.default", "convolution.default", "copy.default", "cos.default", "detach.default",
    "div.Scalar", "div.Tensor", "dropout.default", "embedding.default", "exp.default",
    "expand.default", "gelu.default", "hardtanh.default", "layer_norm.default",
    "leaky_relu.default", "linear.default", "log.default", "matmul.default",
    "mean.dim",
    "mm.default", "mul.Scalar", "mul.Tensor", "neg.default",
    "permute.default", "pow.Tensor_Scalar", "relu.default", "reshape.default",
    "rms_norm.default", "rsqrt.default", "scaled_dot_product_attention.default",
    "select.int", "sigmoid.default", "silu.default", "sin.default", "slice.Tensor",
    "split.Tensor", "split_with_sizes.default", "sqrt.default", "squeeze.dim", "squeeze.dims",
    "stack.default", "sub.Scalar", "sub.Tensor", "sum.dim_IntList", "t.default", "tanh.default",
    "transpose.int", "unbind.int", "unsqueeze.default", "view.default", "where.self",
})  # fmt: skip
#: Those of which the first result is.
FIRST_CONFIRMED = frozenset(
    """
    _native_batch_norm_legit_no_training.default max_pool2d_with_indices.default
    max_pool3d_with_indices.default native_group_norm.default
    """.split()
)
#: Those of them that take tensors without elements.
_OF_EMPTY = frozenset(
    """
    _to_copy.default addmm.default bmm.default cat.default clone.default contiguous.default
    copy.default detach.default expand.default linear.default matmul.default mm.default
    permute.default reshape.default slice.Tensor stack.default t.default transpose.int
    unsqueeze.default view.default
    """.split()
)
#: Those of which TVM has no program for integers.
_OF_FLOATS = frozenset({"avg_pool2d.default", "avg_pool3d.default"})
#: Element types for which they are confirmed.
_USUAL = frozenset({
    torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int32, torch.int64,
    torch.bool,
})  # fmt: skip
#: An operator with more elements among its operands and results is compared in shapes whose
#: extents end at one of these, the first that does.
MOST_ELEMENTS = 1 << 24
_EXTENTS = (256, 64, 16)
#: The least and the largest integers that operands are drawn from: the first for which PyTorch
#: runs. Indices and divisors may be some only.
_INTEGERS = ((-2, 3), (1, 2), (0, 1), (0, 0))
#: Operators that are compared on operands with such values as well.
_OF_NONFINITE = frozenset(
    """
    amax.default amin.default argmax.default argmin.default argsort.default argsort.stable
    bucketize.Tensor clamp.Tensor clamp_max.default clamp_min.default cummax.default cummin.default
    div.Tensor_mode eq.Tensor floor_divide.default fmod.Scalar fmod.Tensor isfinite.default
    isinf.default isnan.default kthvalue.default logsumexp.default max.default max.dim
    max_pool1d.default min.default min.dim sort.default sort.stable
    max_pool2d_with_indices.default max_pool3d_with_indices.default median.default median.dim
    mode.default nan_to_num.default ne.Tensor remainder.Scalar remainder.Tensor searchsorted.Tensor
    selu.default topk.default
    """.split()
)
_NONFINITE = torch.tensor([math.nan, math.inf, -math.inf], device="cpu")
#: By element type, relative; others are equal.
TOLERANCES = {torch.float64: 1e-6, torch.float32: 1e-3, torch.float16: 0.02, torch.bfloat16: 0.1}
_HALF = (torch.float16, torch.bfloat16)
#: How large floats are that are drawn; those of 16 bits of all these sizes.
_SIZES = (1.0, 1e3, 1e-4)
#: What PyTorch raises for operands that an operator does not take.
REFUSALS = (RuntimeError, IndexError, ValueError, TypeError, ArithmeticError)


def is_right(node: torch.fx.Node, name: str, conversions: Conversions) -> bool:
    """Whether a conversion of an operator gives what PyTorch's gives, as far as that can be seen.

    Args:
        node: the operator in its graph, with `meta["val"]` of its operands.
        name: of the conversion.
        conversions: makes those of an importer.
    """
    read = read_results(node)
    values: list[Any] = [each.meta.get("val") for each in node.all_input_nodes]
    values += [each for number, each in enumerate(results(node)) if number in read]
    is_confirmed = name in CONFIRMED or (name in FIRST_CONFIRMED and read <= {0})
    is_usual = all(getattr(each, "dtype", None) in _USUAL for each in values)
    if any(isinstance(each, torch.Tensor) and 0 in each.shape for each in values):
        return is_confirmed and name in _OF_EMPTY  # TVM's programs of others may end the process
    if name in _OF_FLOATS and not any(each.dtype.is_floating_point for each in values):
        return False
    if is_confirmed and is_usual:
        return True
    if not all(isinstance(each, torch.Tensor) for each in values):
        return True  # of a symbolic number, or of a list: nothing can be drawn
    small = _small(node)
    return small is not None and _is_same_drawn(small, name, conversions)


def _is_same_drawn(node: torch.fx.Node, name: str, conversions: Conversions) -> bool:
    """Whether both give the same for drawn operands; not so where PyTorch takes none."""
    cases = []
    # what is large squared may be too large for 16 bits
    is_narrow = any(each.meta["val"].dtype in _HALF for each in node.all_input_nodes)
    sizes = _SIZES if is_narrow else _SIZES[:1]
    for size, has_nonfinite in itertools.product(sizes, (False, True)):
        if has_nonfinite and (name not in _OF_NONFINITE or size != 1.0):
            continue
        for least, largest in _INTEGERS:
            drawn = _drawn(node, least, largest, size, has_nonfinite)
            operands = dict(zip(node.all_input_nodes, drawn, strict=True))
            try:
                cases.append((operands, _called(node, operands)))
            except REFUSALS:
                continue
            break
    if not cases:
        return False
    try:
        convert = _converted(node, name, cases[0][0], conversions)
        return all(_is_same(node, convert(given), expected) for given, expected in cases)
    except export.EXPORT_ERRORS:
        return False


def _is_same(
    node: torch.fx.Node, made: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]
) -> bool:
    pairs = list(zip(made, expected, strict=True))
    has_types = _read(node) is None or all(ours.dtype == theirs.dtype for ours, theirs in pairs)
    return has_types and all(itertools.starmap(_agree, pairs))


def _small(node: torch.fx.Node) -> torch.fx.Node | None:
    """The operator with operands and results that are not too large; None if there is none.

    Long extents are cut, in arguments as well.
    """
    if _n_elements(node) <= MOST_ELEMENTS:
        return node
    for limit in _EXTENTS:
        try:
            small = _cut(node, limit)
        except REFUSALS:
            continue
        if _n_elements(small) <= MOST_ELEMENTS:
            return small
    return None


def _cut(node: torch.fx.Node, limit: int) -> torch.fx.Node:
    """The operator on operands whose extents are at most `limit`, in a graph of its own."""
    graph, made, target = torch.fx.Graph(), {}, cast(Any, node.target)
    extents = {e for each in node.all_input_nodes for e in each.meta["val"].shape if e > limit}
    for each in node.all_input_nodes:
        value = each.meta["val"]
        made[each] = graph.placeholder(each.name)
        shape = [min(extent, limit) for extent in value.shape]
        made[each].meta["val"] = torch.empty(shape, dtype=value.dtype, device="meta")

    def cut(argument: Any) -> Any:
        if isinstance(argument, torch.fx.Node):
            return made[argument]
        is_extent = type(argument) is int and argument in extents
        return limit if is_extent else argument

    args, kwargs = pytree.tree_map(cut, (list(node.args), dict(node.kwargs)))
    small = graph.call_function(target, tuple(args), kwargs)
    if "device" in kwargs:
        kwargs = {**kwargs, "device": torch.device("meta")}
    values = pytree.tree_map_only(torch.fx.Node, lambda each: each.meta["val"], (args, kwargs))
    small.meta["val"] = target(*values[0], **values[1])
    for number, reader in (_read(node) or {}).items():
        graph.call_function(operator.getitem, (small, number)).meta.update(reader.meta)
    return small


def _n_elements(node: torch.fx.Node) -> int:
    """Of an operator's operands and results."""
    values = [*(each.meta["val"] for each in node.all_input_nodes), *results(node)]
    return sum(each.numel() for each in values if isinstance(each, torch.Tensor))


def results(node: torch.fx.Node) -> Sequence[Any]:
    """The values of a node's results, fake tensors above all."""
    value = node.meta.get("val")
    return value if isinstance(value, tuple | list) else (value,)


def read_results(node: torch.fx.Node) -> set[int]:
    """The numbers of the results that are read; {0} of a single result."""
    read = _read(node)
    return {0} if read is None else set(read)


def _read(node: torch.fx.Node) -> dict[int, torch.fx.Node] | None:
    """The results that are read, by number, and what reads them; None of a single result."""
    if isinstance(node.meta["val"], torch.Tensor):
        return None
    readers: list[Any] = [user for user in node.users if user.target is operator.getitem]
    return {each.args[1]: each for each in readers}


def _drawn(
    node: torch.fx.Node, least: int, largest: int, size: float, has_nonfinite: bool
) -> Iterator[torch.Tensor]:
    """Random operands, the same whenever they are drawn."""
    options: Any = {"generator": torch.Generator("cpu").manual_seed(0), "device": "cpu"}
    for number, each in enumerate(node.all_input_nodes):
        value = each.meta["val"]
        if value.dtype.is_floating_point:
            drawn = size * torch.randn(value.shape, dtype=torch.float32, **options)
            if has_nonfinite:
                begin = number * len(_NONFINITE) % max(1, drawn.numel())  # beside finite ones
                some = drawn.view(-1)[begin : begin + len(_NONFINITE)]
                some.copy_(_NONFINITE[: len(some)])
        else:
            low = max(least, 0) if value.dtype in (torch.bool, torch.uint8) else least
            drawn = torch.randint(low, max(low, largest) + 1, value.shape, **options)
        yield drawn.to(value.dtype)


def _called(node: torch.fx.Node, operands: Mapping[torch.fx.Node, torch.Tensor]) -> list[Any]:
    """What PyTorch's operator gives: the results that are read."""
    args, kwargs = pytree.tree_map_only(
        torch.fx.Node, operands.__getitem__, (node.args, dict(node.kwargs))
    )
    call: Any = node.target
    if "device" in kwargs:
        kwargs["device"] = torch.device("cpu")
    with torch.no_grad():
        results = call(*args, **kwargs)
    read = _read(node)
    return [results] if read is None else [results[number] for number in read]


def _converted(
    node: torch.fx.Node,
    name: str,
    operands: Mapping[torch.fx.Node, torch.Tensor],
    conversions: Conversions,
) -> Callable[[Mapping[torch.fx.Node, torch.Tensor]], list[torch.Tensor]]:
    """A conversion, built alone: from operands to the results that are read."""
    importer: Any = translator.ExportedProgramImporter()
    builder = importer.block_builder = relax.BlockBuilder()
    variables = {
        each: relax.Var(
            f"x{number}", relax.TensorType(list(value.shape), calling.dtype_name(value.dtype))
        )
        for number, (each, value) in enumerate(operands.items())
    }
    importer.env = dict(variables)
    with imported.ended(builder), builder.function("main", list(variables.values())):
        with builder.dataflow():
            table = conversions(importer)
            importer.env[node] = table[name](node, importer)
            read = _read(node)
            readers = [] if read is None else read.values()
            outputs = [table["getitem"](each, importer) for each in readers]
            result = builder.emit_output(relax.Tuple(outputs or [importer.env[node]]))
        builder.emit_func_output(result)
    ordered = rewriting.Rewriter(builder.finalize()).run(folding.written_rightly)
    lowered = nan.KEPT(relax.transform.LegalizeOps(numerics.legalizations())(ordered))
    built = relax.build(lowered, target="llvm")
    main = relax.VirtualMachine(built, tvm.cpu())["main"]

    def run(given: Mapping[torch.fx.Node, torch.Tensor]) -> list[torch.Tensor]:
        return [torch.utils.dlpack.from_dlpack(each) for each in main(*given.values())]

    return run


def _agree(result: torch.Tensor, expected: torch.Tensor) -> bool:
    """Whether a result has the shape and the values that PyTorch's has.

    The type of an operator's only result is cast later.
    """
    if result.shape != expected.shape:
        return False
    tolerance = TOLERANCES.get(expected.dtype, 0.0)
    if not tolerance:
        return bool((result.to(expected.dtype) == expected).all())
    wide, wanted = result.double(), expected.double()
    finite = wanted[wanted.isfinite()]
    size = math.sqrt(float(finite.square().mean())) if finite.numel() else 0.0
    near = torch.isclose(wide, wanted, rtol=tolerance, atol=tolerance * size, equal_nan=True)
    return bool(near.all())
