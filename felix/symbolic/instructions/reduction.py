"""Reductions on the symbolic program: rfactor, and moving `init` out of its reduction loops."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import sympy

from felix.errors import UnsupportedSchedule
from felix.symbolic import ir, load, scalar, usage
from felix.symbolic.instructions import inlining, loop_transforms
from felix.symbolic.ir import Access, Affine, Block, Buffer, Digit, Iter, Loop, Program, Scalar


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
    value = inlining.substitute_value(combined, mapping)
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
    holder = loop_transforms.container(program, loops[0])
    place = next(i for i, n in enumerate(holder) if n is loops[0])
    node: Loop | Block = block
    for lp in reversed(kept):
        lp.body = [node]
        node = lp
    holder[place] = node


def decompose_reductions(program: Program) -> None:
    """RewriteReductionBlock: move `init` of each reduction block out of its reduction loops."""
    for loops, block in list(program.walk()):
        if block.init is None or _reduced_over_threads(block, loops):
            continue
        loops = program.loops_of(block)
        point = next(
            (i for i, lp in enumerate(loops) if not _concrete_true(usage.is_data_parallel(lp))),
            None,
        )
        if point is not None:
            _decompose(program, block, loops, point)


def _concrete_true(condition: Scalar) -> bool:
    return scalar.is_static(condition, 1)


def _reduced_over_threads(block: Block, loops: Sequence[Loop]) -> bool:
    digits = {d for lp in loops if lp.thread and "vthread" not in lp.thread for d in lp.digits}
    for it, binding in zip(block.iters, block.bindings, strict=True):
        if it.kind == "reduce":
            for digit in digits:
                if not scalar.is_static(usage.mentions(binding, digit), 0):
                    return True
    return False


def _decompose(program: Program, block: Block, loops: list[Loop], point: int) -> None:
    pairs = [
        (it, b) for it, b in zip(block.iters, block.bindings, strict=True) if it.kind == "spatial"
    ]
    chosen = [
        lp
        for lp in loops[point:]
        if any(not scalar.is_static(usage.mentions(b, d), 0) for _, b in pairs for d in lp.digits)
    ]
    dropped = {d for lp in loops[point:] if lp not in chosen for d in lp.digits}
    copies = {d: Digit(f"{d.name}_init", d.extent, d.sticky) for lp in chosen for d in lp.digits}
    _copy_sources([b for _, b in pairs] + [g for g, _ in block.guards], copies)
    bindings = [copied(b, copies) for _, b in pairs]
    guards = [
        (copied(g, copies), bound) for g, bound in block.guards if not (set(g.terms) & dropped)
    ]
    assert block.init is not None
    init_block = Block(
        f"{block.name}_init",
        [it for it, _ in pairs],
        bindings,
        block.init,
        None,
        guards,
        dict(block.annotations),
    )
    block.name, block.init = f"{block.name}_update", None
    node: Loop | Block = init_block
    for lp in reversed(chosen):
        node = Loop(
            [copies[d] for d in lp.digits],
            [node],
            lp.kind,
            lp.thread,
            lp.parallel,
            lp.vector,
            dict(lp.annotations),
        )
    holder = loop_transforms.container(program, loops[point])
    place = next(i for i, n in enumerate(holder) if n is loops[point])
    holder.insert(place, node)


def _copy_sources(affines: list[Affine], copies: dict[Digit, Digit]) -> None:
    """Derived digits over copied loops need copies of their own."""
    for affine in affines:
        for digit in affine.terms:
            source = digit.source
            if source is None or digit in copies:
                continue
            if any(d in copies for d in source.flat.terms):
                copies[digit] = Digit(
                    digit.name,
                    digit.extent,
                    digit.sticky,
                    ir.Source(
                        copied(source.flat, copies),
                        source.inner,
                        source.outermost,
                        source.radix,
                    ),
                )
