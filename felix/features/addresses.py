"""Where accesses of a block are: values of affine forms, and how far loops move an address.

A *point* gives components of loops their values; all others are 0.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Collection

import sympy

from felix.symbolic import expr, ir, loaded, regions, scalar
from felix.symbolic.ir import Access, Affine, Block, IterComponent, Loop, Scalar


def value_at(affine: Affine, point: dict[IterComponent, Scalar]) -> Scalar:
    """The affine form where `point` gives components their values and all others are 0."""
    total: Scalar = affine.constant
    for component, coefficient in affine.terms.items():
        if component in point or component.source is not None:
            total = total + coefficient * component_at(component, point)
    return total


def component_at(component: IterComponent, point: dict[IterComponent, Scalar]) -> Scalar:
    """A component's value at a point, through its formula if it is derived."""
    if component in point:
        return point[component]
    if component.source is None:
        return 0
    value = scalar.floor_div(value_at(component.source.flat, point), component.source.inner)
    return value if component.source.outermost else scalar.floor_mod(value, component.extent)


def index_at(index: sympy.Expr, block: Block, point: dict[IterComponent, Scalar]) -> Scalar:
    """An index expression of the block's iterators at a point."""
    used = index.free_symbols
    mapping = {
        it.symbol: sympy.sympify(value_at(binding, point))
        for it, binding in block.bound
        if it.symbol in used
    }
    return scalar.plain(index.xreplace(mapping))


def moved_dims(access: Access, block: Block, components: Collection[IterComponent]) -> list[int]:
    """Buffer dimensions whose index depends on any of the components."""
    iters = {
        it.symbol
        for it, binding in block.bound
        if any(regions.depends(comp, components) for comp in binding.terms)
    }
    return [i for i, index in enumerate(access.indices) if index.free_symbols & iters]


def loop_point(loop: Loop, value: Scalar) -> dict[IterComponent, Scalar]:
    """The components of a loop when its (fused) variable has `value`."""
    point = {}
    inner: Scalar = 1
    for i in range(len(loop.components) - 1, -1, -1):
        component = loop.components[i]
        part = scalar.floor_div(value, inner)
        point[component] = part if i == 0 else scalar.floor_mod(part, component.extent)
        inner = inner * component.extent
    return point


@dataclasses.dataclass(frozen=True, eq=False)
class Address:
    """The address of an access, in elements of a buffer of this shape, as loops move it.

    An index that depends on data moves by half its dimension with each place it is loaded from.
    """

    access: Access
    block: Block
    shape: tuple[Scalar, ...]
    _known: dict[tuple[Loop, Scalar], Scalar] = dataclasses.field(default_factory=dict)

    @functools.cached_property
    def _steps(self) -> list[Scalar]:
        return [ir.product(self.shape[i + 1 :]) for i in range(len(self.shape))]

    @functools.cached_property
    def _indices(self) -> list[sympy.Expr]:
        pairs = zip(self.access.indices, self.shape, strict=True)
        return [loaded.stepped(index, extent) for index, extent in pairs]

    @functools.cached_property
    def _origin(self) -> list[Scalar]:
        return [index_at(index, self.block, {}) for index in self._indices]

    def offset(self, loop: Loop, value: Scalar = 1) -> Scalar:
        """|address(loop = value) - address(origin)| in elements, other loops at 0."""
        key = (loop, value)
        if key not in self._known:
            self._known[key] = self._offset(loop, value)
        return self._known[key]

    def _offset(self, loop: Loop, value: Scalar) -> Scalar:
        point = loop_point(loop, value)
        total: Scalar = 0
        for dim in moved_dims(self.access, self.block, loop.components):
            moved = index_at(self._indices[dim], self.block, point) - self._origin[dim]
            total = total + moved * self._steps[dim]
        return abs(total) if isinstance(total, int) else expr.Absolute(total)


def passes(block: Block, loop: Loop, value: Scalar) -> Scalar:
    """Condition that the iteration loop = value, other loops at 0, passes the block's guards."""
    point = loop_point(loop, value)
    result: Scalar = 1
    for flat, bound in block.guards:
        if any(comp in point for comp in flat.terms):
            result = scalar.both(result, scalar.less(value_at(flat, point), bound))
    return result
