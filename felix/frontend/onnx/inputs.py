"""An ONNX model's inputs: shapes that the file leaves open and the caller gives, and types."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from felix import errors, names
from felix.frontend.onnx import constants, schemas

#: Inputs and operators that a message lists.
_MAX_LISTED = 20


def check(graph: Any, shapes: Mapping[str, Sequence[int]]) -> None:
    """Shapes are of inputs, have their rank, and give each open extent one value.

    Raises:
        WorkloadError: they are not; the message says which input, and what to do.
    """
    inputs = schemas.inputs(graph)
    every = Counter(item.name for item in graph.input)
    repeated = every - Counter(every.keys())
    if repeated:
        raise errors.WorkloadError(
            f"the ONNX model has two inputs of the name {listed(repeated)}; a name is one value"
        )
    for name in shapes:
        if name not in inputs:
            raise errors.WorkloadError(
                f"shapes: the model has no input {names.quoted(name)}; "
                f"its inputs are {listed(inputs)}"
            )
    extents: dict[str, tuple[str, int]] = {}
    for name, item in inputs.items():
        kind, given = item.type.tensor_type, shapes.get(name)
        if any(extent < 1 for extent in given or ()):
            raise errors.WorkloadError(
                f"shapes: an extent of the input {names.quoted(name)} is below 1"
            )
        for index, dim in enumerate(kind.shape.dim):
            parameter = names.check(
                f"an extent of the input {names.quoted(name)}", dim.dim_param or "-"
            )
            if dim.dim_value < 0:
                raise errors.WorkloadError(
                    f"the input {names.quoted(name)} of the ONNX model has a negative extent"
                )
            if given is not None and index < len(given) and dim.dim_param:
                _check_extent(extents, parameter, name, given[index])
        rank = len(kind.shape.dim)
        if given is not None and kind.HasField("shape") and rank != len(given):
            raise errors.WorkloadError(
                f"shapes: the input {names.quoted(name)} has {rank} extents, not {len(given)}"
            )
    _check_open(graph, inputs, shapes)


def _check_extent(
    extents: dict[str, tuple[str, int]], parameter: str, name: str, extent: int
) -> None:
    other, earlier = extents.setdefault(parameter, (name, extent))
    if earlier != extent:
        raise errors.WorkloadError(
            f"shapes: {names.quoted(parameter)} is {earlier} in the input {names.quoted(other)} "
            f"and {extent} in {names.quoted(name)}; it is one extent"
        )


def _check_open(
    graph: Any, inputs: Mapping[str, Any], shapes: Mapping[str, Sequence[int]]
) -> None:
    """Every input that a node reads has a shape: TVM's programs of others have unknown extents."""
    read = {name for node in graph.node for name in node.input}
    for name, item in inputs.items():
        if name in shapes or name not in read:
            continue
        if not item.type.tensor_type.HasField("shape"):
            raise errors.WorkloadError(
                f"the input {names.quoted(name)} of the ONNX model leaves its shape open: give "
                "the shape of this input in `shapes`"
            )
        for index, dim in enumerate(item.type.tensor_type.shape.dim):
            if dim.HasField("dim_value") and not dim.dim_value:
                raise errors.WorkloadError(
                    f"the input {names.quoted(name)} of the ONNX model has an extent of 0, a "
                    "tensor without elements: if it may have some, give its shape in `shapes`"
                )
            if not dim.dim_value:
                label = f" ({names.quoted(dim.dim_param)})" if dim.dim_param else ""
                raise errors.WorkloadError(
                    f"the input {names.quoted(name)} of the ONNX model leaves extent {index}"
                    f"{label} open: give the shape of this input in `shapes`"
                )


def listed(items: Iterable[str]) -> str:
    """Names in quotes, of many the first ones."""
    quoted = [names.quoted(item) for item in items]
    more = f" and {len(quoted) - _MAX_LISTED} more" if len(quoted) > _MAX_LISTED else ""
    return (", ".join(quoted[:_MAX_LISTED]) or "none") + more


# Which types a model's inputs may have.

#: Element types of tensors that are read: real numbers of whole bytes, and scales of 8 bits.
_READ = constants.TYPES | {"float8e8m0"}


def check_types(graph: Any) -> None:
    """Inputs of a graph are tensors of numbers, and it has an output.

    Raises:
        WorkloadError: they are not, or there is none.
    """
    for item in graph.input:
        kind = item.type.WhichOneof("value") or "unknown"
        if kind != "tensor_type":
            what = f"of the kind {kind.removesuffix('_type')}"
        elif (refused := unread_type(item.type.tensor_type.elem_type)) is not None:
            what = f"of the element type {refused}"
        else:
            continue
        raise errors.WorkloadError(
            f"the ONNX model cannot be imported: its input {names.quoted(item.name)} is {what}, "
            "not a tensor of booleans, of integers or floats of 8 to 64 bits"
        )
    if not graph.output:
        raise errors.WorkloadError("the ONNX model has no outputs: there is nothing to compute")


def unread_type(number: int) -> str | None:
    """ONNX's name of an element type whose values are not read; None for others."""
    name = schemas.type_name(number)
    return None if name in _READ else name
