"""Where blocks are computed and what they are read and written through, on the symbolic program:
compute_at, reverse_compute_at, cache_read, cache_write, set_scope.
"""

from __future__ import annotations

import dataclasses

import sympy

from felix.errors import UnsupportedSchedule
from felix.symbolic import index_expr, ir, loaded, regions, scalar
from felix.symbolic.instructions import loop_transforms
from felix.symbolic.ir import (
    Access,
    Affine,
    Block,
    Buffer,
    Iter,
    IterComponent,
    Loop,
    SymbolicProgram,
)

_Terms = dict[IterComponent, ir.Scalar]


def compute_at(program: SymbolicProgram, block: Block, loop: Loop, reverse: bool) -> None:
    """sch.compute_at / sch.reverse_compute_at with preserved unit loops.

    compute_at puts a producer under `loop`, covering what its consumers there read; reverse puts
    a consumer there, covering what its producers there write.
    """
    under = ir.blocks_under(loop)
    partners = [b for b in under if (consumes(block, b) if reverse else consumes(b, block))]
    needed = _domains(program, block, loop, partners, reverse)
    domains = _covered(program, block, loop, partners, reverse, needed)
    program.conditions += [i.dynamic for i in domains if not scalar.is_static(i.dynamic, 0)]
    remove(program, block)
    components = [IterComponent(f"ax{i}", interval.extent) for i, interval in enumerate(domains)]
    block.bindings = [
        Affine(
            {**interval.minimum.terms, component: 1},
            interval.minimum.constant,
            frozenset(interval.minimum.terms),
        )
        for component, interval in zip(components, domains, strict=True)
    ]
    block.guards = (
        _guards(block, partners) + _overhangs(program, partners, loop)
        if reverse
        else _excess(block, components, domains, needed)
    )
    place = len(loop.body)
    for i, node in enumerate(loop.body):
        if any(consumes(other, block) for other in ir.blocks_under(node)):
            place = i
            break
    loop.body.insert(place, loop_transforms.nest(components, block))


def _covered(
    program: SymbolicProgram,
    block: Block,
    loop: Loop,
    partners: list[Block],
    reverse: bool,
    needed: list[regions.Interval],
) -> list[regions.Interval]:
    """What TVM has the block cover: more than `needed` where loops of its partners overhang.

    A domain that is needed as a whole stays as it is, for TVM cuts longer ones.
    """
    if not any(partner.guards for partner in partners):
        return needed
    reached = _domains(program, block, loop, partners, reverse, predicates=False)
    return [
        need if regions.whole(need, it.extent) else reach
        for it, need, reach in zip(block.iters, needed, reached, strict=True)
    ]


def _excess(
    block: Block,
    components: list[IterComponent],
    domains: list[regions.Interval],
    needed: list[regions.Interval],
) -> list[tuple[Affine, ir.Scalar]]:
    """What keeps a block in its domain that covers more than needed.

    TVM's predicate is of minimum + loop. Of the loop alone no more pass than the domain has.
    """
    return [
        (Affine({component: 1}), scalar.minimum(domain.extent, it.extent))
        for it, component, domain, need in zip(
            block.iters, components, domains, needed, strict=True
        )
        if domain.extent != need.extent
    ]


def _guards(block: Block, producers: list[Block]) -> list[tuple[Affine, ir.Scalar]]:
    """What keeps a block that reads a part of what is produced (padded, say) in its domain."""
    produced = {id(producer.store.target.buffer) for producer in producers}
    sizes = {
        index: size
        for access in block.reads
        if id(access.buffer) in produced
        for index, size in zip(access.indices, access.buffer.shape, strict=True)
    }
    return [
        (binding, it.extent)
        for it, binding in block.bound
        if isinstance(it.extent, int)
        and isinstance(size := sizes.get(it.symbol), int)
        and it.extent < size
    ]


def _overhangs(
    program: SymbolicProgram, producers: list[Block], loop: Loop
) -> list[tuple[Affine, ir.Scalar]]:
    """The guards of producers that concern nothing but `loop` and the loops around it.

    Where such loops overhang, a block that indexes by them leaves its domain as well.
    """
    guards: list[tuple[Affine, ir.Scalar]] = []
    for producer in producers:
        loops = program.loops_of(producer)
        depth = next(i for i, each in enumerate(loops) if each is loop)
        around = {comp for each in loops[: depth + 1] for comp in each.components}
        guards += [guard for guard in producer.guards if around.issuperset(guard[0].terms)]
    return guards


def consumes(consumer: Block, producer: Block) -> bool:
    """Whether a block reads what another one stores."""
    return consumer is not producer and any(producer.stores_to(a.buffer) for a in consumer.reads)


def _domains(
    program: SymbolicProgram,
    block: Block,
    loop: Loop,
    partners: list[Block],
    reverse: bool,
    predicates: bool = True,
) -> list[regions.Interval]:
    """What each iterator has to cover; TVM's ComputeAt ignores the partners' `predicates`."""
    shared = block.reads if reverse else block.writes
    provided: list[tuple[sympy.Expr, regions.Interval, int]] = []
    required: dict[int, list[regions.Interval]] = {}
    for access in shared:
        buffer = access.buffer
        for partner in partners:
            loops = program.loops_of(partner)
            scope = None if reverse else buffer.scope
            relaxed = regions.path_components(loops, loop, scope)
            accesses = partner.writes if reverse else partner.reads
            seen = partner if predicates else _unguarded(partner, relaxed)
            intervals = regions.required_intervals(buffer, seen, accesses, relaxed)
            if intervals is None:
                continue
            before = required.get(id(buffer))
            if before is not None:
                intervals = regions.unions(before, intervals, buffer.shape)
            required[id(buffer)] = intervals
        if id(buffer) in required:
            provided += zip(access.indices, required[id(buffer)], buffer.shape, strict=True)
    return regions.solve_domains(block, provided)


def _unguarded(block: Block, relaxed: set[IterComponent]) -> Block:
    """The block as TVM's ComputeAt bounds what it touches: by loops alone, not by predicates."""
    flats = [flat.terms for flat, _ in block.guards]
    if not flats:
        return block
    bindings = [
        dataclasses.replace(
            b, terms={_reaching(comp, flats, relaxed): c for comp, c in b.terms.items()}
        )
        for b in block.bindings
    ]
    return dataclasses.replace(block, bindings=bindings, guards=[])


def _reaching(
    component: IterComponent, overhanging: list[_Terms], relaxed: set[IterComponent]
) -> IterComponent:
    """The component with as many values as the loops that it is computed of give it.

    A quotient of loops that overhang has more than its extent, a remainder has not.
    """
    source = component.source
    if source is None or not source.outermost or source.flat.terms not in overhanging:
        return component
    if not regions.is_relaxed(component, relaxed):
        return component
    reach = regions.relax(source.flat, relaxed).extent
    return dataclasses.replace(component, extent=scalar.ceil_div(reach, source.inner))


def remove(program: SymbolicProgram, block: Block) -> None:
    """Take the block out, with the loops that would be left empty."""
    node: Loop | Block = block
    for loop in reversed(program.loops_of(block)):
        if len(loop.body) > 1:
            loop.body[:] = [n for n in loop.body if n is not node]
            return
        node = loop
    program.body[:] = [n for n in program.body if n is not node]


def tvm_reads(block: Block) -> list[Buffer]:
    """Buffers in the order of TVM's block.reads: a reduction's own target is not among them."""
    buffers = dict.fromkeys(a.buffer for a in block.reads)
    return [b for b in buffers if not (block.inits and block.stores_to(b))]


def cache_read(
    program: SymbolicProgram, block: Block, index: int, scope: str, consumers: list[Block]
) -> Block:
    """sch.cache_read: copy a buffer the block reads into a new buffer of `scope`."""
    source = tvm_reads(block)[index]
    cached = program.like(source, f"{source.name}_{scope}", source.shape, scope)
    copy, nest = _copy_block(program, source, cached, f"{source.name}_{scope}")
    writers = [b for _, b in program.walk() if b.stores_to(source)]
    program.body.insert(program.place_of(writers[0]) + 1 if writers else 0, nest)
    for consumer in consumers or [b for _, b in program.walk() if b is not copy]:
        redirect(consumer, source, cached)
    return copy


def cache_write(program: SymbolicProgram, block: Block, index: int, scope: str) -> Block:
    """sch.cache_write: let the block write a new buffer of `scope` and copy that out after it."""
    if index != 0:
        raise UnsupportedSchedule("cache_write of a second output")
    target = block.store.target.buffer
    cached = program.like(target, f"{target.name}_{scope}", target.shape, scope)
    copy, nest = _copy_block(program, cached, target, f"{target.name}_{scope}")
    program.body.insert(program.place_of(block) + 1, nest)
    redirect(block, target, cached)
    return copy


def set_scope(buffer: Buffer, scope: str) -> None:
    """sch.set_scope: move a buffer to another memory; TVM renames it after the scope."""
    if buffer.scope == scope:
        return
    buffer.name, buffer.scope = f"{buffer.name}_{scope}", scope


def _copy_block(
    program: SymbolicProgram, source: Buffer, target: Buffer, name: str
) -> tuple[Block, Loop | Block]:
    iters = iters_of(source)
    indices = tuple(it.symbol for it in iters)
    store = ir.Store(Access(target, indices), ir.Value.load(Access(source, indices)))
    block = Block(name, iters, [], (store,))
    block.number = sum(other.name == name for _, other in program.walk())
    return block, loop_transforms.bound_nest(block)


def iters_of(buffer: Buffer) -> list[Iter]:
    """Spatial iterators of a block that goes over a buffer, one for each dimension."""
    return [
        Iter(index_expr.iter_symbol(f"v{i}"), extent, "spatial")
        for i, extent in enumerate(buffer.shape)
    ]


def redirect(block: Block, old: Buffer, new: Buffer) -> None:
    """Let every access of the block to `old` go to `new`."""

    def index(i: sympy.Expr) -> sympy.Expr:
        return loaded.redirected(i, old, new)

    def access(a: Access) -> Access:
        return dataclasses.replace(a.mapped(index), buffer=new if a.buffer is old else a.buffer)

    def load(v: ir.Value) -> ir.Value | None:
        return None if v.access is None else dataclasses.replace(v, access=access(v.access))

    def store(s: ir.Store) -> ir.Store:
        return ir.Store(access(s.target), s.value.mapped(index).replaced(load))

    block.stores, block.inits = tuple(map(store, block.stores)), tuple(map(store, block.inits))
