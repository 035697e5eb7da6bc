"""What each schedule instruction does to the symbolic program: one function per instruction.

The functions mirror TVM's schedule primitives closely enough that loops, extents, bindings and
storage scopes come out equal; `symbolic.check` compares them. All of them change the program in
place. Reads `symbolic.ir`, `symbolic.regions`; feeds `symbolic.interpret`.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence

import sympy

from felix.errors import UnsupportedSchedule
from felix.symbolic import ir, load, regions, scalar
from felix.symbolic.ir import Access, Affine, Block, Buffer, Digit, Iter, Loop, Program, Scalar

# ---------------------------------------------------------------- loops


def split(program: Program, loop: Loop, factors: Sequence[Scalar | None]) -> list[Loop]:
    """sch.split: replace `loop` by a nest of these extents; None is inferred, rounded up."""
    extent = loop.extent
    known = ir.product(f for f in factors if f is not None)
    sizes = [scalar.ceil_div(extent, known) if f is None else f for f in factors]
    digits = [Digit(f"{loop.digits[0].name}_{i}", size) for i, size in enumerate(sizes)]
    flat = Affine({}, 0)
    for i, digit in enumerate(digits):
        flat = flat.plus(Affine({digit: ir.product(sizes[i + 1 :])}))
    _resolve(loop, flat)
    overhang = ir.product(sizes) - extent
    if not scalar.is_static(overhang, 0) and not _visibly_zero(overhang):
        for block in ir.blocks_under(loop):
            block.guards.append((flat, extent))
    return _replace_by_nest(loop, digits)


def _visibly_zero(value: Scalar) -> bool:
    return isinstance(value, sympy.Expr) and bool(sympy.expand(value) == 0)


def _resolve(loop: Loop, flat: Affine) -> None:
    """Express the digits of `loop` through the flat index `flat` of the loops replacing it."""
    if len(loop.digits) == 1:
        _substitute(loop, loop.digits[0], flat)
        return
    for i, digit in enumerate(loop.digits):
        inner = ir.product(d.extent for d in loop.digits[i + 1 :])
        if scalar.is_static(digit.extent, 1):
            _substitute(loop, digit, Affine({}, 0))
        elif all(scalar.is_static(d.extent, 1) for d in loop.digits if d is not digit):
            _substitute(loop, digit, flat)
        else:
            digit.source = ir.Source(flat, inner, outermost=i == 0)


def _substitute(node: Loop, digit: Digit, value: Affine) -> None:
    seen: set[int] = set()

    def in_affine(affine: Affine) -> Affine:
        for other in affine.terms:
            if other.source is not None and id(other) not in seen:
                seen.add(id(other))
                other.source.flat = in_affine(other.source.flat)
        return affine.substituted(digit, value)

    for block in ir.blocks_under(node):
        block.bindings = [in_affine(b) for b in block.bindings]
        block.guards = [(in_affine(g), bound) for g, bound in block.guards]


def _replace_by_nest(loop: Loop, digits: list[Digit]) -> list[Loop]:
    """Turn `loop` into a nest of single-digit loops, keeping its identity for the outermost."""
    body = loop.body
    inner: list[Loop] = []
    for digit in reversed(digits[1:]):
        nested = Loop([digit], body)
        inner.insert(0, nested)
        body = [nested]
    loop.digits, loop.body = [digits[0]], body
    return [loop, *inner]


def fuse(loops: Sequence[Loop]) -> Loop:
    """sch.fuse: one loop over all digits of a perfect nest of loops."""
    for outer, inner in itertools.pairwise(loops):
        if len(outer.body) != 1 or outer.body[0] is not inner:
            raise UnsupportedSchedule("fuse needs a perfect nest")
    first = loops[0]
    first.digits = [digit for loop in loops for digit in loop.digits]
    for digit in first.digits:
        digit.sticky = False
    first.body = loops[-1].body
    return first


def reorder(program: Program, order: Sequence[Loop]) -> None:
    """sch.reorder: permute loops of one nest; the places they hold together stay the same."""
    block = ir.blocks_under(order[0])[0]
    chain = [lp for lp in program.loops_of(block) if any(lp is o for o in order)]
    if len(chain) != len(order):
        raise UnsupportedSchedule("reorder needs loops of one nest")
    bodies = [lp.body for lp in chain]
    parents = [container(program, lp) for lp in chain]
    places = [
        next(i for i, n in enumerate(p) if n is lp) for p, lp in zip(parents, chain, strict=True)
    ]
    for holder, place, loop in zip(parents, places, order, strict=True):
        holder[place] = loop
    for loop, body in zip(order, bodies, strict=True):
        loop.body = body


def container(program: Program, node: Loop | Block) -> list[Loop | Block]:
    """The statement list that holds `node`."""
    stack: list[list[Loop | Block]] = [program.body]
    while stack:
        statements = stack.pop()
        for child in statements:
            if child is node:
                return statements
            if isinstance(child, Loop):
                stack.append(child.body)
    raise KeyError("node is not in the program")


def add_unit_loop(program: Program, node: Loop | Block) -> Loop:
    """sch.add_unit_loop: a loop of extent 1 around `node`."""
    holder = container(program, node)
    place = next(i for i, n in enumerate(holder) if n is node)
    loop = Loop([Digit("u", 1)], [node])
    holder[place] = loop
    return loop


# ---------------------------------------------------------------- caches


def tvm_reads(block: Block) -> list[Buffer]:
    """Buffers in the order of TVM's block.reads: a reduction's own target is not among them."""
    own = block.store.target.buffer if block.init is not None else None
    return list(dict.fromkeys(a.buffer for a in block.reads if a.buffer is not own))


def cache_read(
    program: Program, block: Block, index: int, scope: str, consumers: list[Block]
) -> Block:
    """sch.cache_read: copy a buffer the block reads into a new buffer of `scope`."""
    source = tvm_reads(block)[index]
    cached = _cache_buffer(program, source, scope)
    copy, nest = _copy_block(source, cached, f"{source.name}_{scope}")
    writers = [(lp, b) for lp, b in program.walk() if b.store.target.buffer is source]
    place = 0
    if writers:
        top = writers[0][0][0] if writers[0][0] else writers[0][1]
        place = next(i for i, n in enumerate(program.body) if n is top) + 1
    program.body.insert(place, nest)
    for consumer in consumers or [b for _, b in program.walk() if b is not copy]:
        _redirect(consumer, source, cached)
    return copy


def cache_write(program: Program, block: Block, index: int, scope: str) -> Block:
    """sch.cache_write: let the block write a new buffer of `scope` and copy that out after it."""
    if index != 0:
        raise UnsupportedSchedule("cache_write of a second output")
    target = block.store.target.buffer
    cached = _cache_buffer(program, target, scope)
    copy, nest = _copy_block(cached, target, f"{target.name}_{scope}")
    loops = program.loops_of(block)
    top: Loop | Block = loops[0] if loops else block
    place = next(i for i, n in enumerate(program.body) if n is top) + 1
    program.body.insert(place, nest)
    _redirect(block, target, cached)
    return copy


def _cache_buffer(program: Program, source: Buffer, scope: str) -> Buffer:
    name = f"{source.name}_{scope}"
    while name in program.buffers:
        name += "_1"
    buffer = Buffer(name, source.shape, source.dtype, source.dtype_bytes, scope)
    program.buffers[name] = buffer
    return buffer


def set_scope(program: Program, buffer: Buffer, scope: str) -> None:
    """sch.set_scope: move a buffer to another memory; TVM renames it after the scope."""
    if buffer.scope == scope:
        return
    buffer.name, buffer.scope = f"{buffer.name}_{scope}", scope
    program.buffers = {b.name: b for b in program.buffers.values()}


def _copy_block(source: Buffer, target: Buffer, name: str) -> tuple[Block, Loop | Block]:
    iters = [
        Iter(load.iter_symbol(f"v{i}"), extent, "spatial") for i, extent in enumerate(source.shape)
    ]
    digits = [Digit(f"ax{i}", extent) for i, extent in enumerate(source.shape)]
    indices = tuple(it.symbol for it in iters)
    is_float = source.dtype.startswith(("float", "bfloat"))
    store = ir.Store(
        Access(target, indices), ir.Value("load", is_float, access=Access(source, indices))
    )
    block = Block(name, iters, [Affine({d: 1}) for d in digits], store)
    return block, _nest(digits, block)


def _nest(digits: Sequence[Digit], node: Loop | Block) -> Loop | Block:
    for digit in reversed(digits):
        node = Loop([digit], [node])
    return node


def _redirect(block: Block, old: Buffer, new: Buffer) -> None:
    """Let every access of the block to `old` go to `new`."""

    def access(a: Access) -> Access:
        return Access(new, a.indices) if a.buffer is old else a

    def value(v: ir.Value) -> ir.Value:
        changed = access(v.access) if v.access is not None else None
        return ir.Value(v.op, v.is_float, tuple(value(x) for x in v.args), changed, v.expr)

    block.store = ir.Store(access(block.store.target), value(block.store.value))
    if block.init is not None:
        block.init = ir.Store(access(block.init.target), value(block.init.value))


# ---------------------------------------------------------------- compute location


def compute_at(program: Program, block: Block, loop: Loop, reverse: bool) -> None:
    """sch.compute_at / sch.reverse_compute_at with preserved unit loops.

    compute_at puts a producer under `loop`, covering what its consumers there read; reverse puts
    a consumer there, covering what its producers there write.
    """
    partners = _partners(program, block, loop, reverse)
    domains = _domains(program, block, loop, partners, reverse)
    program.conditions += [d.dynamic for d in domains if not scalar.is_static(d.dynamic, 0)]
    _remove(program, block)
    digits = [Digit(f"ax{i}", interval.extent) for i, interval in enumerate(domains)]
    block.bindings = [
        Affine(
            {**interval.minimum.terms, digit: 1},
            interval.minimum.constant,
            frozenset(interval.minimum.terms),
        )
        for digit, interval in zip(digits, domains, strict=True)
    ]
    block.guards = []
    place = len(loop.body)
    for i, node in enumerate(loop.body):
        if any(_consumes(other, block) for other in ir.blocks_under(node)):
            place = i
            break
    loop.body.insert(place, _nest(digits, block))


def _consumes(consumer: Block, producer: Block) -> bool:
    target = producer.store.target.buffer
    return consumer is not producer and any(a.buffer is target for a in consumer.reads)


def _partners(program: Program, block: Block, loop: Loop, reverse: bool) -> list[Block]:
    under = ir.blocks_under(loop)
    if reverse:
        return [b for b in under if _consumes(block, b)]
    return [b for b in under if _consumes(b, block)]


def _domains(
    program: Program, block: Block, loop: Loop, partners: list[Block], reverse: bool
) -> list[regions.Interval]:
    own = block.reads if reverse else block.writes
    provided: list[tuple[sympy.Expr, regions.Interval, int]] = []
    required: dict[int, list[regions.Interval]] = {}
    for access in own:
        buffer = access.buffer
        for partner in partners:
            loops = program.loops_of(partner)
            scope = None if reverse else buffer.scope
            relaxed = regions.path_digits(loops, loop, scope)
            accesses = partner.writes if reverse else partner.reads
            found = regions.required_intervals(buffer, partner, accesses, relaxed)
            if found is None:
                continue
            before = required.get(id(buffer))
            required[id(buffer)] = (
                found
                if before is None
                else [
                    regions.union(a, b, n)
                    for a, b, n in zip(before, found, buffer.shape, strict=True)
                ]
            )
        if id(buffer) in required:
            provided += zip(access.indices, required[id(buffer)], buffer.shape, strict=True)
    return regions.solve_domains(block, provided)


def _remove(program: Program, block: Block) -> None:
    """Take the block out, with the loops that would be left empty."""
    node: Loop | Block = block
    for loop in reversed(program.loops_of(block)):
        if len(loop.body) > 1:
            loop.body[:] = [n for n in loop.body if n is not node]
            return
        node = loop
    program.body[:] = [n for n in program.body if n is not node]


# ---------------------------------------------------------------- inlining


def compute_inline(program: Program, block: Block) -> None:
    """sch.compute_inline: substitute the block's value into its consumers."""
    target = block.store.target
    if block.init is not None:
        raise UnsupportedSchedule(f"a reduction cannot be inlined: {block.name}")
    for _, consumer in program.walk():
        if _consumes(consumer, block):
            consumer.store = ir.Store(
                consumer.store.target, _inlined(consumer.store.value, target, block.store.value)
            )
    _remove(program, block)
    del program.buffers[target.buffer.name]


def _inlined(value: ir.Value, target: Access, body: ir.Value) -> ir.Value:
    if value.access is not None and value.access.buffer is target.buffer:
        mapping = {}
        for formal, actual in zip(target.indices, value.access.indices, strict=True):
            if formal.is_Symbol:
                mapping[formal] = actual
            elif formal != actual:
                raise UnsupportedSchedule("inlining a block that stores at a computed index")
        return substitute_value(body, mapping)
    args = tuple(_inlined(a, target, body) for a in value.args)
    return ir.Value(value.op, value.is_float, args, value.access, value.expr)


def substitute_value(value: ir.Value, mapping: dict[sympy.Symbol, sympy.Expr]) -> ir.Value:
    """The value with block iterators replaced, simultaneously."""
    access = value.access
    if access is not None:
        access = Access(access.buffer, tuple(replace(i, mapping) for i in access.indices))
    args = tuple(substitute_value(a, mapping) for a in value.args)
    expr = replace(value.expr, mapping) if value.expr is not None else None
    return ir.Value(value.op, value.is_float, args, access, expr)


def replace(expr: sympy.Expr, mapping: dict[sympy.Symbol, sympy.Expr]) -> sympy.Expr:
    """Simultaneous substitution of symbols."""
    return expr.xreplace(mapping)


def reverse_compute_inline(program: Program, block: Block) -> None:
    """sch.reverse_compute_inline: append the block's computation to its only producer."""
    producers = [b for _, b in program.walk() if _consumes(block, b)]
    if len(producers) != 1:
        raise UnsupportedSchedule("reverse_compute_inline needs one producer in the program")
    producer = producers[0]
    stored = producer.store.target
    loads = [a for a in block.reads if a.buffer is stored.buffer]
    mapping: dict[sympy.Symbol, sympy.Expr] = {}
    for access in loads:
        for formal, actual in zip(access.indices, stored.indices, strict=True):
            if formal.is_Symbol:
                mapping[formal] = actual
            elif formal != actual and formal != 0:
                raise UnsupportedSchedule("reverse inlining through a computed index")
    for it in block.iters:
        if it.symbol not in mapping:
            if not scalar.is_static(it.extent, 1):
                raise UnsupportedSchedule("reverse inlining a block with an iterator of its own")
            mapping[it.symbol] = sympy.Integer(0)
    value = _inlined(substitute_value(block.store.value, mapping), stored, producer.store.value)
    indices = tuple(replace(i, mapping) for i in block.store.target.indices)
    producer.store = ir.Store(Access(block.store.target.buffer, indices), value)
    _remove(program, block)
    del program.buffers[stored.buffer.name]


# ---------------------------------------------------------------- reductions


def rfactor(program: Program, loop: Loop, factor_axis: int) -> Block:
    """sch.rfactor: factor the reduction over `loop` into a block of its own.

    Returns the new block, which reduces the other loops into a buffer with one more dimension;
    the old block is left reducing that buffer over `loop`.
    """
    block = ir.blocks_under(loop)[0]
    loops = program.loops_of(block)
    rf_digit = loop.digits[0]
    if len(loop.digits) != 1 or block.init is None:
        raise UnsupportedSchedule("rfactor over a fused loop")
    old = block.store.target.buffer
    shape = list(old.shape)
    axis = factor_axis if factor_axis >= 0 else len(shape) + 1 + factor_axis
    shape.insert(axis, rf_digit.extent)
    buffer = Buffer(f"{old.name}.rf", tuple(shape), old.dtype, old.dtype_bytes, old.scope)
    program.buffers[buffer.name] = buffer
    rf_block, copies = _rfactor_block(block, loops, rf_digit, buffer, axis)
    rf_nest: Loop | Block = rf_block
    for lp in reversed(loops):
        rf_nest = Loop([copies[d] for d in lp.digits], [rf_nest])
    place = next(i for i, n in enumerate(program.body) if n is loops[0])
    _write_back(program, block, loops, loop, buffer, axis)
    program.body.insert(place, rf_nest)
    return rf_block


def _rfactor_block(
    block: Block, loops: list[Loop], rf_digit: Digit, buffer: Buffer, axis: int
) -> tuple[Block, dict[Digit, Digit]]:
    copies = {d: Digit(d.name, d.extent, d.sticky) for lp in loops for d in lp.digits}
    sources = {d for b in block.bindings for d in b.terms if d.source is not None}
    for digit in sources:
        copies[digit] = Digit(digit.name, digit.extent, digit.sticky)
    for digit in sources:
        assert digit.source is not None
        copies[digit].source = dataclasses.replace(
            digit.source, flat=copied(digit.source.flat, copies)
        )
    first = load.iter_symbol(f"v{rf_digit.name}")
    iters, bindings = [Iter(first, rf_digit.extent, "spatial")], [Affine({copies[rf_digit]: 1})]
    by_digit: dict[Digit, sympy.Symbol] = {rf_digit: first}
    mapping: dict[sympy.Symbol, sympy.Expr] = {}
    for it, binding in zip(block.iters, block.bindings, strict=True):
        used = _base_digits(binding)
        if it.kind == "spatial" or rf_digit not in used:
            iters.append(it)
            bindings.append(copied(binding, copies))
            continue
        for digit in used:
            if digit not in by_digit:
                by_digit[digit] = load.iter_symbol(f"v{digit.name}")
                iters.append(Iter(by_digit[digit], digit.extent, "reduce"))
                bindings.append(Affine({copies[digit]: 1}))
        mapping[it.symbol] = _as_index(binding, by_digit)
    target = _with_axis(block.store.target, buffer, axis, first)
    combined = _retarget(block.store.value, block.store.target, target)
    assert block.init is not None
    has_reduce = any(it.kind == "reduce" for it in iters)
    value = substitute_value(combined, mapping)
    if not has_reduce:
        value = _combiner_right(value, target)
    init = ir.Store(target, block.init.value) if has_reduce else None
    guards = [(copied(g, copies), bound) for g, bound in block.guards]
    annotations = dict(block.annotations)
    rf_block = Block(
        f"{block.name}_rf", iters, bindings, ir.Store(target, value), init, guards, annotations
    )
    return rf_block, copies


def _base_digits(affine: Affine) -> list[Digit]:
    """Digits of real loops the expression depends on, through derived digits."""
    result: dict[Digit, None] = {}
    for digit in affine.terms:
        inner = _base_digits(digit.source.flat) if digit.source is not None else [digit]
        result.update(dict.fromkeys(inner))
    return list(result)


def copied(affine: Affine, copies: dict[Digit, Digit]) -> Affine:
    terms = {copies.get(d, d): c for d, c in affine.terms.items()}
    return Affine(terms, affine.constant, frozenset(copies.get(d, d) for d in affine.fading))


def _as_index(affine: Affine, symbols: dict[Digit, sympy.Symbol]) -> sympy.Expr:
    total = sympy.sympify(affine.constant)
    for digit, coefficient in affine.terms.items():
        if digit.source is not None:
            flat = _as_index(digit.source.flat, symbols)
            term = scalar.floor_div(flat, sympy.sympify(digit.source.inner))
            if not digit.source.outermost:
                term = scalar.floor_mod(term, sympy.sympify(digit.extent))
        else:
            term = symbols[digit]
        total = total + term * coefficient
    return total


def _with_axis(access: Access, buffer: Buffer, axis: int, symbol: sympy.Symbol) -> Access:
    indices = list(access.indices)
    indices.insert(axis, symbol)
    return Access(buffer, tuple(indices))


def _retarget(value: ir.Value, old: Access, new: Access) -> ir.Value:
    """The update with its own accumulator read from the new buffer."""
    if value.access == old:
        return ir.Value(value.op, value.is_float, (), new)
    args = tuple(_retarget(a, old, new) for a in value.args)
    return ir.Value(value.op, value.is_float, args, value.access, value.expr)


def _combiner_right(value: ir.Value, target: Access) -> ir.Value:
    """The right operand of acc (+) rhs: what one step contributes."""
    if len(value.args) == 2 and value.args[0].access == target:
        return value.args[1]
    raise UnsupportedSchedule("the reduction is not of the form acc = combine(acc, value)")


def _write_back(
    program: Program, block: Block, loops: list[Loop], rf_loop: Loop, buffer: Buffer, axis: int
) -> None:
    """Rewrite the reduction block in place to reduce `buffer` over the rfactor loop only."""
    rf_digit = rf_loop.digits[0]
    reduce_digits = {
        d
        for it, binding in zip(block.iters, block.bindings, strict=True)
        if it.kind == "reduce"
        for d in _base_digits(binding)
    }
    spatial = [
        (it, b) for it, b in zip(block.iters, block.bindings, strict=True) if it.kind == "spatial"
    ]
    first = load.iter_symbol(f"v{rf_digit.name}")
    block.iters = [Iter(first, rf_digit.extent, "reduce"), *[it for it, _ in spatial]]
    block.bindings = [Affine({rf_digit: 1}), *[b for _, b in spatial]]
    block.guards = []
    accumulator = block.store.value.args[0]
    operand = ir.Value(
        "load", accumulator.is_float, access=_with_axis(block.store.target, buffer, axis, first)
    )
    value = ir.Value(block.store.value.op, block.store.value.is_float, (accumulator, operand))
    block.store = ir.Store(block.store.target, value)
    kept = [lp for lp in loops if lp is rf_loop or not any(d in reduce_digits for d in lp.digits)]
    holder = container(program, loops[0])
    place = next(i for i, n in enumerate(holder) if n is loops[0])
    node: Loop | Block = block
    for lp in reversed(kept):
        lp.body = [node]
        node = lp
    holder[place] = node
