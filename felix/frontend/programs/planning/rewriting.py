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

from tvm import relax, tirx

from felix.frontend.programs import groups, outlining
from felix.frontend.programs.planning import reading

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

    mod = outlining.rebuilt(read.mod, emit)
    return reading.extended(read, mod, calls, extra)


def emitted(
    builder: relax.BlockBuilder, func: tirx.PrimFunc, operands: Sequence[Any], name: str
) -> tuple[Any, ...]:
    """The variables of a program's results, behind a call of it that costs nothing."""
    whole = builder.emit(_call(builder, func, operands, name), name)
    n_outputs = len(func.params) - len(operands)
    if n_outputs == 1:
        return (whole,)
    return tuple(builder.emit(relax.TupleGetItem(whole, n), name) for n in range(n_outputs))


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
    outputs = list(func.params)[len(operands) :]
    kinds = [
        relax.TensorType([int(extent) for extent in buffer.shape], str(buffer.dtype))
        for buffer in outputs
    ]
    variable = builder.add_func(func.without_attr("global_symbol"), name)
    return builder.normalize(relax.call_tir(variable, relax.Tuple(list(operands)), kinds))
