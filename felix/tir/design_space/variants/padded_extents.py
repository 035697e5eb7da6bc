"""Products whose extents are padded to multiples that divide well.

Tiles are exact divisors of an extent. A prime extent has none, so that a product of 197 rows is
one row at a time or all at once. Such extents are rounded up to a multiple of a power of two
(pad_einsum): operands are read as 0 outside of their tensors, and results outside are not stored.
What the padding adds to the work is what the cost model and measuring decide by.

An extent is padded if no number up to `LARGEST_FACTOR` but those below `MIN_DIVISOR` divides it:
to the largest multiple of 64, 32, 16 or 8 that adds at most `MAX_WASTE` of it. Only products of
tensors at plain indices can be padded (no windows). On a GPU, whose tiles are large in every
dimension, the program that is padded replaces the other where no number from `MIN_TILE` on divides
a padded extent.
"""

from __future__ import annotations

from collections.abc import Sequence

import tvm

from felix.tir.design_space.variants import split_reductions
from felix.tir.design_space.variants.variant import Machine, Prefix, Variant

MULTIPLES = (64, 32, 16, 8)
#: An extent divides well that has a divisor of at least this made of primes up to 7.
MIN_DIVISOR = 16
#: Of the primes up to 7, the smallest divisor of an extent that tiles of a GPU can have.
MIN_TILE = 4
#: Share of an extent that its padding may add.
MAX_WASTE = 0.1
_PRIMES = (2, 3, 5, 7)


def prefixes(mod: tvm.IRModule, machine: Machine) -> Sequence[Prefix]:
    """The program with padded extents; none where all extents divide well."""
    largest = split_reductions.large_product(mod["main"])
    if largest is None or not largest.has_plain_indices:
        return []
    padding = [multiple(extent) for extent in largest.extents]
    if max(padding) == 1:
        return []

    def apply(schedule: tvm.s_tir.Schedule) -> None:
        schedule.pad_einsum(schedule.get_sblock(largest.name, func_name="main"), padding)

    changed = tuple((f"loop{i}", each) for i, each in enumerate(padding) if each > 1)
    padded = [e for e, multiple in zip(largest.extents, padding, strict=True) if multiple > 1]
    is_worse = machine.is_gpu and any(smooth_divisor(extent) < MIN_TILE for extent in padded)
    return [Prefix(Variant("padded_extents", changed, replaces_stock=is_worse), apply)]


def multiple(extent: int) -> int:
    """What an extent is rounded up to multiples of; 1 where it stays."""
    if extent < MIN_DIVISOR or smooth_divisor(extent) >= MIN_DIVISOR:
        return 1
    allowed = (m for m in MULTIPLES if -extent % m <= MAX_WASTE * extent)
    return next(allowed, 1)


def smooth_divisor(extent: int) -> int:
    """The largest divisor made of primes up to 7."""
    divisor = 1
    for prime in _PRIMES:
        while extent % (divisor * prime) == 0:
            divisor *= prime
    return divisor
