"""Interpret a MetaSchedule trace on the symbolic program.

`parse` turns a TVM trace into plain instructions once; `interpret` runs them, with a value for
each sampling instruction: numbers give a concrete program, symbols a symbolic one. Compute
locations are always numbers, for they choose the structure.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from felix.errors import UnsupportedSchedule
from felix.symbolic import ir, scalar, usage
from felix.symbolic.instructions import inlining, layouts, loop_transforms, placement, reduction
from felix.symbolic.ir import Block, Loop, Scalar, SymbolicProgram

if TYPE_CHECKING:
    from tvm.s_tir.schedule import Trace

INLINE, ROOT = -2, -1
#: How a trace writes that a buffer is one that a block reads.
_READ = 0


@dataclasses.dataclass(frozen=True, slots=True)
class Ref:
    """A random variable of the trace, by number."""

    number: int


@dataclasses.dataclass(frozen=True, slots=True)
class Instruction:
    """One schedule instruction with plain operands.

    Attributes:
        position: index in the trace's instructions.
        inputs: `Ref`s and constants.
        attrs: strings, ints, lists.
        outputs: the random variables it defines.
    """

    position: int
    kind: str
    inputs: tuple[Any, ...]
    attrs: tuple[Any, ...]
    outputs: tuple[Ref, ...]


def parse(trace: Trace) -> list[Instruction]:
    """Plain instructions of a TVM trace, up to the postprocessors."""
    numbers: dict[Any, Ref] = {}
    result = []
    for position, inst in enumerate(trace.insts):
        kind = inst.kind.name
        if kind == "EnterPostproc":
            break
        inputs = tuple(_plain(x, numbers) for x in inst.inputs)
        for rv in inst.outputs:
            numbers[rv] = Ref(len(numbers))
        outputs = tuple(numbers[rv] for rv in inst.outputs)
        attrs = tuple(_plain(x, numbers) for x in inst.attrs)
        result.append(Instruction(position, kind, inputs, attrs, outputs))
    return result


def _plain(value: Any, numbers: Mapping[Any, Ref]) -> Any:
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, str):
        return str(value)
    if type(value).__name__ in ("IntImm", "FloatImm"):
        return value.value
    if type(value).__name__ == "StringImm":
        return str(value.value)
    if type(value).__name__ == "IndexMap":
        return layouts.IndexMap.of(value)
    if type(value).__name__ in ("Array", "List", "list", "tuple"):
        return tuple(_plain(x, numbers) for x in value)
    if value in numbers:
        return numbers[value]
    raise UnsupportedSchedule(f"operand {value} of type {type(value).__name__} in a trace")


@dataclasses.dataclass(slots=True)
class State:
    """What interpretation has built so far.

    Attributes:
        values: random variable -> Block, Loop, Scalar, or INLINE / ROOT for a location.
        decide: sampling instruction -> values of its outputs.
    """

    program: SymbolicProgram
    decide: Callable[[Instruction, State], Sequence[Scalar]]
    values: dict[Ref, Any] = dataclasses.field(default_factory=dict)

    def get(self, operand: Any) -> Any:
        return self.values[operand] if isinstance(operand, Ref) else operand


def interpret(
    program: SymbolicProgram,
    trace: Sequence[Instruction],
    decide: Callable[[Instruction, State], Sequence[Scalar]],
) -> State:
    """Run the trace on `program`, which is changed.

    Raises:
        UnsupportedSchedule: an instruction or its effect is not modelled.
    """
    state = State(program, decide)
    for inst in trace:
        handler = HANDLERS.get(inst.kind)
        if handler is None:
            raise UnsupportedSchedule(f"schedule instruction {inst.kind} is not modelled")
        outputs = handler(state, inst)
        if len(outputs) != len(inst.outputs):
            raise UnsupportedSchedule(
                f"{inst.kind}: {len(inst.outputs)} results expected, {len(outputs)} modelled"
            )
        for ref, value in zip(inst.outputs, outputs, strict=True):
            state.values[ref] = value
    return state


def consumers(program: SymbolicProgram, block: Block) -> list[Block]:
    """Blocks that read what `block` writes, in program order."""
    return [b for _, b in program.walk() if placement.consumes(b, block)]


def _producers(program: SymbolicProgram, block: Block) -> list[Block]:
    return [b for _, b in program.walk() if placement.consumes(block, b)]


_Handler = Callable[[State, Instruction], list[Any]]


def _of(transform: Callable[..., Any]) -> _Handler:
    """What a function of the program, a block or loop, and the attributes does; its results."""
    return lambda state, inst: _listed(
        transform(state.program, state.get(inst.inputs[0]), *inst.attrs)
    )


def _of_inputs(transform: Callable[..., Any]) -> _Handler:
    """What a function of the program and the inputs does, whatever the attributes."""
    return lambda state, inst: _listed(transform(state.program, *map(state.get, inst.inputs)))


def _listed(results: Any) -> list[Any]:
    return [] if results is None else results if isinstance(results, list) else [results]


def _sample(state: State, inst: Instruction) -> list[Any]:
    return list(state.decide(inst, state))


def _sample_location(state: State, inst: Instruction) -> list[Any]:
    (location,) = state.decide(inst, state)
    block: Block = state.get(inst.inputs[0])
    if location in (INLINE, ROOT):
        return [location]
    readers = consumers(state.program, block)
    loops = state.program.loops_of(readers[0]) if readers else []
    if location >= len(loops):
        raise UnsupportedSchedule(f"compute location {location} does not exist")
    state.program.conditions += location_conditions(loops, location)
    return [loops[location]]


def location_conditions(loops: Sequence[Loop], location: int) -> list[Scalar]:
    """Expressions <= 0 where TVM allows loop `location` of a consumer's nest.

    TVM skips unit loops, and stops at a data-parallel loop that follows a reduction loop
    (CollectComputeLocation).
    """
    conditions: list[Scalar] = [2 - loops[location].extent]
    parallel = [usage.is_data_parallel(lp) for lp in loops[: location + 1]]
    for k in range(location + 1):
        for j in range(k):
            broken = scalar.both(scalar.negated(parallel[j]), parallel[k])
            units = scalar.minimum(loops[j].extent, loops[k].extent) - 1
            violation = scalar.select(broken, units, 0)
            if not scalar.is_static(violation, 0):
                conditions.append(violation)
    return conditions


def _bind(_: SymbolicProgram, loop: Loop, thread: str) -> None:
    loop.kind, loop.thread = "thread", thread


def _set_kind(kind: ir.LoopKind, _: SymbolicProgram, loop: Loop) -> None:
    loop.kind = kind


def _annotate(state: State, inst: Instruction) -> list[Any]:
    target, value = state.get(inst.inputs[0]), state.get(inst.inputs[1])
    _annotations(target)[inst.attrs[0]] = value
    return []


def _unannotate(state: State, inst: Instruction) -> list[Any]:
    _annotations(state.get(inst.inputs[0])).pop(inst.attrs[0], None)
    return []


def _annotations(target: SymbolicProgram | Block | Loop) -> dict[str, Any]:
    return target.root_annotations if isinstance(target, SymbolicProgram) else target.annotations


def _cache_read(state: State, inst: Instruction) -> list[Any]:
    block = state.get(inst.inputs[0])
    readers = [state.get(x) for x in inst.inputs[1]] if len(inst.inputs) > 1 else []
    index, scope = inst.attrs[0], inst.attrs[1]
    return [placement.cache_read(state.program, block, index, scope, readers)]


def _compute_at(reverse: bool, program: SymbolicProgram, block: Block, loop: Any) -> None:
    if loop == INLINE:
        inlining.compute_inline(program, block)
    elif loop != ROOT:
        placement.compute_at(program, block, loop, reverse)


def _set_scope(_: SymbolicProgram, block: Block, index: int, scope: str) -> None:
    placement.set_scope(block.store.target.buffer, scope)


def _reindex(program: SymbolicProgram, block: Block, index: int, side: int) -> Block:
    reindex = layouts.reindex_read if side == _READ else layouts.reindex_write
    return reindex(program, block, index)


def _get_block(state: State, inst: Instruction) -> list[Any]:
    name = inst.attrs[0]
    return [state.program if name == "root" else state.program.block(name)]


#: Instruction name -> what it does; all that the default design spaces and the variants use.
HANDLERS: dict[str, _Handler] = {
    "GetSBlock": _get_block,
    "GetLoops": _of(lambda program, block: list(program.loops_of(block))),
    "GetConsumers": _of(consumers),
    "GetProducers": _of(_producers),
    "SamplePerfectTile": _sample,
    "SampleCategorical": _sample,
    "SampleComputeLocation": _sample_location,
    "Split": _of_inputs(lambda program, *of: loop_transforms.split(program, of[0], of[1:])),
    "Fuse": _of_inputs(lambda _, *loops: loop_transforms.fuse(loops)),
    "Reorder": _of_inputs(lambda program, *order: loop_transforms.reorder(program, order)),
    "Bind": _of(_bind),
    "Parallel": _of_inputs(functools.partial(_set_kind, "parallel")),
    "Vectorize": _of_inputs(functools.partial(_set_kind, "vectorized")),
    "Unroll": _of_inputs(functools.partial(_set_kind, "unrolled")),
    "Annotate": _annotate,
    "Unannotate": _unannotate,
    "CacheRead": _cache_read,
    "CacheWrite": _of(placement.cache_write),
    "ComputeAt": _of_inputs(functools.partial(_compute_at, False)),
    "ReverseComputeAt": _of_inputs(functools.partial(_compute_at, True)),
    "ComputeInline": _of(inlining.compute_inline),
    "ReverseComputeInline": _of(inlining.reverse_compute_inline),
    "SetScope": _of(_set_scope),
    "RFactor": _of(reduction.rfactor),
    "PadEinsum": _of(layouts.pad_einsum),
    "TransformBlockLayout": _of(layouts.transform_block_layout),
    "ReIndex": _of(_reindex),
    "AddUnitLoop": _of(loop_transforms.add_unit_loop),
}
