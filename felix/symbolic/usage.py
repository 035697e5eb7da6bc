"""Which loops a binding mentions, and whether a loop is data parallel, as TVM would find.

Both are conditions (0/1 scalars): a unit loop that was fused is no longer mentioned.
"""

from __future__ import annotations

from collections.abc import Iterable

from felix.symbolic import ir, scalar
from felix.symbolic.ir import Loop, Scalar


def is_data_parallel(loop: Loop) -> Scalar:
    """Condition that no reduction iterator below is bound to the loop (GetLoopIterType)."""
    reduced: Scalar = 0
    for block in ir.blocks_under(loop):
        reduced = feeding(loop.components, block, reduced)
    return scalar.negated(reduced)


def feeding(
    components: Iterable[ir.IterComponent], block: ir.Block, otherwise: Scalar = 0
) -> Scalar:
    """Condition that a reduction iterator of the block is bound to one, or `otherwise`."""
    for it, binding in block.bound:
        if it.kind == "reduce":
            for component in components:
                otherwise = scalar.either(otherwise, mentions(binding, component))
    return otherwise


def may_feed(components: Iterable[ir.IterComponent], block: ir.Block) -> bool:
    """Whether a reduction iterator of the block is bound to one of these for some decisions."""
    return not scalar.is_static(feeding(components, block), 0)


def mentions(binding: ir.Affine, component: ir.IterComponent) -> Scalar:
    """Condition that a loop's component occurs in a binding, directly or through a derived one."""
    occurs = binding.mentions(component)
    for other in binding.terms:
        if other.source is not None:
            through = scalar.both(
                scalar.negated(scalar.equal(other.extent, 1)),
                mentions(other.source.flat, component),
            )
            occurs = scalar.either(occurs, through)
    return occurs
