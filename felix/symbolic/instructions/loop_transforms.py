"""Loop instructions on the symbolic program: split, fuse, reorder, add a unit loop.

Like all instructions they mirror TVM's schedule primitives closely enough that loops,
extents, bindings and scopes come out equal, which tests compare, and they change the program in
place.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import sympy

from felix.errors import UnsupportedSchedule
from felix.symbolic import expr, ir, scalar
from felix.symbolic.ir import Affine, Block, IterComponent, Loop, Scalar, SymbolicProgram


def split(program: SymbolicProgram, loop: Loop, factors: Sequence[Scalar | None]) -> list[Loop]:
    """sch.split: replace `loop` by a nest of these extents; None is inferred, rounded up."""
    extent = loop.extent
    known = ir.product(f for f in factors if f is not None)
    sizes = [scalar.ceil_div(extent, known) if f is None else f for f in factors]
    components = [
        IterComponent(f"{loop.components[0].name}_{i}", size) for i, size in enumerate(sizes)
    ]
    flat = Affine({}, 0)
    for i, component in enumerate(components):
        flat = flat.plus(Affine({component: ir.product(sizes[i + 1 :])}))
    _resolve(loop, flat)
    overhang = ir.product(sizes) - extent
    if not scalar.is_static(overhang, 0) and not _visibly_zero(overhang):
        for block in ir.blocks_under(loop):
            block.guards.append((flat, extent))
    return _replace_by_nest(loop, components)


def _visibly_zero(value: Scalar) -> bool:
    return isinstance(value, sympy.Expr) and bool(expr.expanded(value) == 0)


def _resolve(loop: Loop, flat: Affine) -> None:
    """Express the components of `loop` through the flat index `flat` of the loops replacing it."""
    if len(loop.components) == 1:
        _substitute(loop, loop.components[0], flat)
        return
    for i, component in enumerate(loop.components):
        inner = ir.product(comp.extent for comp in loop.components[i + 1 :])
        if scalar.is_static(component.extent, 1):
            _substitute(loop, component, Affine({}, 0))
        elif all(
            scalar.is_static(comp.extent, 1) for comp in loop.components if comp is not component
        ):
            _substitute(loop, component, flat)
        else:
            component.source = ir.Source(flat, inner, outermost=i == 0)


def _substitute(node: Loop, component: IterComponent, value: Affine) -> None:
    visited: set[int] = set()

    def in_affine(affine: Affine) -> Affine:
        for other in affine.terms:
            if other.source is not None and id(other) not in visited:
                visited.add(id(other))
                other.source.flat = in_affine(other.source.flat)
        return affine.substituted(component, value)

    for block in ir.blocks_under(node):
        block.bindings = [in_affine(b) for b in block.bindings]
        block.guards = [(in_affine(g), bound) for g, bound in block.guards]


def _replace_by_nest(loop: Loop, components: list[IterComponent]) -> list[Loop]:
    """Turn `loop` into a nest of loops of one component; the outermost is the same object."""
    body = loop.body
    inner: list[Loop] = []
    for component in reversed(components[1:]):
        nested = Loop([component], body)
        inner.insert(0, nested)
        body = [nested]
    loop.components, loop.body = [components[0]], body
    return [loop, *inner]


def fuse(loops: Sequence[Loop]) -> Loop:
    """sch.fuse: one loop over all components of a perfect nest of loops."""
    for outer, inner in itertools.pairwise(loops):
        if len(outer.body) != 1 or outer.body[0] is not inner:
            raise UnsupportedSchedule("fuse needs a perfect nest")
    first = loops[0]
    first.components = [component for loop in loops for component in loop.components]
    for component in first.components:
        component.survives_unit_extent = False
    first.body = loops[-1].body
    return first


def reorder(program: SymbolicProgram, order: Sequence[Loop]) -> None:
    """sch.reorder: permute loops of one nest; the places they hold together stay the same."""
    block = ir.blocks_under(order[0])[0]
    chain = [lp for lp in program.loops_of(block) if any(lp is o for o in order)]
    if len(chain) != len(order):
        raise UnsupportedSchedule("reorder needs loops of one nest")
    bodies = [lp.body for lp in chain]
    places = [place_of(program, lp) for lp in chain]
    for (holder, place), loop in zip(places, order, strict=True):
        holder[place] = loop
    for loop, body in zip(order, bodies, strict=True):
        loop.body = body


def place_of(program: SymbolicProgram, node: Loop | Block) -> tuple[list[Loop | Block], int]:
    """The statement list that holds `node`, and where."""
    stack: list[list[Loop | Block]] = [program.body]
    while stack:
        statements = stack.pop()
        for place, child in enumerate(statements):
            if child is node:
                return statements, place
            if isinstance(child, Loop):
                stack.append(child.body)
    raise KeyError("node is not in the program")


def add_unit_loop(program: SymbolicProgram, node: Loop | Block) -> Loop:
    """sch.add_unit_loop: a loop of extent 1 around `node`."""
    holder, place = place_of(program, node)
    loop = Loop([IterComponent("u", 1)], [node])
    holder[place] = loop
    return loop


def bound_nest(block: Block, prefix: str = "ax") -> Loop | Block:
    """The block with a loop for each iterator, which it becomes bound to."""
    components = [IterComponent(f"{prefix}{i}", it.extent) for i, it in enumerate(block.iters)]
    block.bindings = [Affine({component: 1}) for component in components]
    return nest(components, block)


def nest(components: Sequence[IterComponent], node: Loop | Block) -> Loop | Block:
    """Serial loops over the components, outermost first, around `node`."""
    for component in reversed(components):
        node = Loop([component], [node])
    return node
