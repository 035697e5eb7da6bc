"""Other operators that compute a model's values, added to its module.

Some of a model's values can be computed in another way, from values that the model does not have
and from parameters that are prepared once. Both ways are in the graph, and the choice of groups
takes the cheaper one. What is not taken is left out of the module with all that has no reader.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from tvm import relax, s_tir, tirx

from felix import errors
from felix.frontend.programs import groups
from felix.frontend.programs.planning import reading
from felix.frontend.rewriting import rebuilt, results_of_call, tensor_type
from felix.templates.gemm import stages
from felix.templates.gemm.stages import NotPlain, Stage, require
from felix.tir import grammar, validate
from felix.tir.design_space.variants import nests

#: TVM's kinds of operators, as of a move of elements, of a product and of a norm.
MOVE, PRODUCT, ROWS = groups.MOVE, 4, groups.OPAQUE


@dataclasses.dataclass(frozen=True, slots=True)
class Added:
    """What one rewriting adds.

    Attributes:
        new: calls that give new values.
        stand_ins: calls that compute values of the model.
    """

    new: Sequence[groups.Call] = ()
    stand_ins: Sequence[groups.Call] = ()


#: Adds bindings by a builder, at the place where a value of the model is made.
Rewriting: TypeAlias = Callable[[relax.BlockBuilder], Added]


def extended(
    read: reading.Reading, rewritings: Mapping[Any, Sequence[Rewriting]]
) -> reading.Reading:
    """The reading with what rewritings add.

    Args:
        rewritings: by the variable in front of whose binding they come; their stand-ins compute
            its value.
    """
    if not rewritings:
        return read
    calls: list[groups.Call] = []
    extra: list[Any] = []
    known = defaultdict(list)
    for call in read.calls:
        known[call.var].append(call)

    def emit(builder: relax.BlockBuilder, binding: Any) -> None:
        added = [rewriting(builder) for rewriting in rewritings.get(binding.var, ())]
        new = [call for each in added for call in each.new]
        calls.extend(new)
        extra.extend(call.var for call in new)
        builder.emit_normalized(binding)
        calls.extend(known[binding.var])
        calls.extend(call for each in added for call in each.stand_ins)

    mod = rebuilt(read.mod, emit)
    return reading.extended(read, mod, calls, extra)


def checked(func: tirx.PrimFunc) -> tirx.PrimFunc | None:
    """A candidate's program, its indices those of its operators; None if Felix cannot tune it."""
    plain = func.without_attr("global_symbol").without_attr("op_pattern")
    try:
        return validate.normalise(plain, clamp=True, narrow=False)
    except errors.WorkloadError:
        return None


def emitted(
    builder: relax.BlockBuilder, func: tirx.PrimFunc, operands: Sequence[Any], name: str
) -> list[Any]:
    """The variables of a program's results, behind a call of it that costs nothing."""
    call, n_outputs = _call(builder, func, operands, name), len(func.params) - len(operands)
    return results_of_call(builder, call, n_outputs, name)


def called(
    builder: relax.BlockBuilder,
    func: tirx.PrimFunc,
    operands: Sequence[Any],
    name: str,
    kind: int,
    variable: Any = None,
) -> groups.Call:
    """A call of a program, of one of TVM's kinds of operators.

    Args:
        variable: whose value it gives; None: a new value.
    """
    value = _call(builder, func.with_attr("op_pattern", kind), operands, name)
    result = builder.emit(value, name) if variable is None else variable
    return groups.described(result, value, func.with_attr("op_pattern", kind))


def _call(
    builder: relax.BlockBuilder, func: tirx.PrimFunc, operands: Sequence[Any], name: str
) -> Any:
    """A call of a program, whose last parameters are its results."""
    kinds = list(map(tensor_type, list(func.params)[len(operands) :]))
    variable = builder.add_func(func.without_attr("global_symbol"), name)
    return builder.normalize(relax.call_tir(variable, relax.Tuple(list(operands)), kinds))


# A product with more columns: one that computes what several products of one tensor do.
#
# Notation: j, an iterator of a product's result that only its weights have besides. A widened
# program has j in [0, N), whatever it was before; what is read at j is N long there.


@dataclasses.dataclass(frozen=True, slots=True)
class Widened:
    """A program of a product, and where j is in what it reads and gives.

    Attributes:
        extent: of j.
        dimensions: by the number of each parameter the dimension that j is the index of; the last
            parameter is the result.
    """

    func: tirx.PrimFunc
    extent: int
    dimensions: Mapping[int, int]

    @property
    def of_result(self) -> int:
        """The dimension of the result."""
        return self.dimensions[len(self.func.params) - 1]


def widened(func: tirx.PrimFunc, weight: int, extent: int | None = None) -> Widened | None:
    """A checked program of a product with j in [0, extent); None if it has no such form.

    Args:
        func: a product, and elementwise operators behind it.
        weight: the number of the parameter whose iterators j is one of.
        extent: as long as it is, if left out.
    """
    try:
        return _Widening(func, weight, extent).widened()
    except NotPlain:
        return None


class _Widening:
    """The buffers of a program that are indexed by j, and what they become."""

    def __init__(self, func: tirx.PrimFunc, weight: int, extent: int | None) -> None:
        self._func = func
        self._params = list(func.params)
        self._stages = stages.stages_of(func)
        products = [each for each in self._stages if each.is_reduction]
        require(len(products) == 1, f"it has {len(products)} reductions, and a product is one")
        self._columns = self._column(products[0], self._params[weight])
        self._extent = extent or self._columns.extent
        self._dimension: dict[Any, int] = {}
        self._new: dict[Any, Any] = {}

    @staticmethod
    def _column(product: Stage, weight: Any) -> nests.Axis:
        """The iterator that the result and the weights alone have."""
        loads = nests.loads(product.value)
        of_weight = [load for load in loads if load.source.same_as(weight)]
        others = [
            load
            for load in loads
            if not load.source.same_as(weight) and not load.source.same_as(product.buffer)
        ]
        require(len(of_weight) == 1 and len(others) == 1, "it is no product of two tensors")
        of_other = {each for index in others[0].indices for each in nests.variables(index)}
        columns = [
            axis
            for axis in product.spatial
            if any(axis.variable.same_as(index) for index in of_weight[0].indices)
            and axis.variable not in of_other
        ]
        require(len(columns) == 1, f"its weights have {len(columns)} iterators of their own")
        return columns[0]

    def widened(self) -> Widened:
        made = [self._stage(stage) for stage in self._stages]
        params = [self._new.get(param, param) for param in self._params]
        func = nests.function(
            tirx.PrimFunc(params, self._func.body).with_attr("s_tir", True), made
        )
        numbers = {
            n: self._dimension[p] for n, p in enumerate(self._params) if p in self._dimension
        }
        require(len(self._params) - 1 in numbers, "its result is not that of its product")
        return Widened(validate.normalise(func, narrow=False), self._extent, numbers)

    def _stage(self, stage: Stage) -> nests.Nest:
        """A stage with more columns, if it has columns."""
        column = self._column_of(stage)
        axes = [
            dataclasses.replace(axis, extent=self._extent) if axis.variable == column else axis
            for axis in stage.nest.axes
        ]
        if column is not None:
            self._widen(stage.buffer, list(stage.indices), column)
            for load in nests.loads(stage.value):
                self._widen(load.source, list(load.indices), column)
        target = self._new.get(stage.buffer, stage.buffer)

        def moved(load: Any) -> Any:
            source = self._new.get(load.source)
            return None if source is None else source[tuple(load.indices)]

        value = nests.with_loads(stage.value, moved)
        init = stage.nest.block.init
        first = None if init is None else init.value
        return nests.make(target, axes, list(stage.indices), value, first, stage.nest.name)

    def _column_of(self, stage: Stage) -> Any:
        """The iterator of a stage that goes over columns; None if none does."""
        if stage.is_reduction:
            return self._columns.variable
        found = {
            list(load.indices)[self._dimension[load.source]]
            for load in nests.loads(stage.value)
            if load.source in self._dimension
        }
        require(len(found) <= 1, "it reads its product at several places")
        column = next(iter(found), None)
        is_plain = column is None or any(column.same_as(axis.variable) for axis in stage.spatial)
        require(is_plain, "it does not read its product at plain iterators")
        return column

    def _widen(self, buffer: Any, indices: Sequence[Any], column: Any) -> None:
        """Make a buffer longer where it is indexed by the columns."""
        uses = [n for n, index in enumerate(indices) if column in nests.variables(index)]
        if not uses:
            require(buffer not in self._dimension, f"{buffer.name} is read in two ways")
            return
        require(
            len(uses) == 1 and indices[uses[0]].same_as(column),
            f"{buffer.name} is not read at plain columns",
        )
        known = self._dimension.setdefault(buffer, uses[0])
        require(known == uses[0], f"{buffer.name} is read in two ways")
        if buffer not in self._new:
            shape = list(grammar.shape(buffer))
            shape[uses[0]] = self._extent
            self._new[buffer] = nests.buffer_like(str(buffer.name), buffer, shape)


def concatenation(shapes: Sequence[Sequence[int]], axis: int, like: Any) -> tirx.PrimFunc:
    """The program that puts tensors one behind the other along an axis.

    Args:
        shapes: of the tensors.
        like: a buffer of their element and index types.
    """
    parts = [nests.buffer_like(f"part{n}", like, shape) for n, shape in enumerate(shapes)]
    whole = list(shapes[0])
    whole[axis] = sum(shape[axis] for shape in shapes)

    def value(at: Sequence[Any]) -> Any:
        begins = [sum(shape[axis] for shape in shapes[:n]) for n in range(len(shapes))]
        result: Any = None
        for part, begin in reversed(list(zip(parts, begins, strict=True))):
            inner = [*at[:axis], at[axis] - _constant(begin, like), *at[axis + 1 :]]
            here = part[tuple(inner)]
            if result is None:
                result = here
            else:
                end = begin + int(part.shape[axis])
                result = tirx.if_then_else(at[axis] < _constant(end, like), here, result)
        return result

    return _computed("whole", parts, like, whole, value)


def slice_of(shape: Sequence[int], axis: int, begin: int, end: int, like: Any) -> tirx.PrimFunc:
    """The program that gives [begin, end) of an axis of a tensor."""
    whole = nests.buffer_like("whole", like, shape)
    part = [*shape[:axis], end - begin, *shape[axis + 1 :]]

    def value(at: Sequence[Any]) -> Any:
        return whole[(*at[:axis], at[axis] + _constant(begin, like), *at[axis + 1 :])]

    return _computed("part", [whole], like, part, value)


def _computed(
    name: str,
    inputs: Sequence[Any],
    like: Any,
    shape: Sequence[int],
    value: Callable[[Sequence[Any]], Any],
) -> tirx.PrimFunc:
    """A program of one nest."""
    nest = nests.computed(name, like, shape, value)
    root = s_tir.SBlock([], [], [], "root", nest.statement)
    body = s_tir.SBlockRealize([], True, root)
    func = tirx.PrimFunc([*inputs, nest.buffer], body).with_attr("s_tir", True)
    return validate.normalise(func, narrow=False)


def _constant(value: int, like: Any) -> Any:
    return tirx.IntImm(nests.index_dtype(like), value)
