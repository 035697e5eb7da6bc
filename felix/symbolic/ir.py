"""The symbolic program: loops, blocks and buffers whose sizes are expressions.

A `Scalar` is a Python int or a sympy expression in the decision variables, so one and the same
program form serves two uses: with variables left symbolic it yields formulas; with every
variable given a number it is a concrete loop nest, which is what is compared with TVM.

Notation
    component  one original loop before fusion (`IterComponent`); a loop is a row of components,
               outermost first, and its extent is the product of their extents. Fusing
               concatenates components.
    affine     sum of (coefficient x component) + constant: how a block iterator is bound to
               loops.
    iter       block iterator, a sympy symbol; buffer indices are expressions in iters.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

import sympy

from felix.errors import UnsupportedSchedule
from felix.symbolic import expr, loaded, scalar

Scalar = scalar.Scalar
IterKind = Literal["spatial", "reduce"]
LoopKind = Literal["serial", "parallel", "vectorized", "unrolled", "thread"]


@dataclasses.dataclass(eq=False, slots=True)
class IterComponent:
    """An elementary loop variable, 0 <= component < extent.

    Attributes:
        extent: number of values.
        survives_unit_extent: True while TVM keeps the variable in bindings even when `extent` is
            1 (plain loops); False once it was fused, when a unit component vanishes from every
            expression.
        source: set when the loop of this component was split across its boundaries: the
            component is (flat // inner) % extent (without the % when it is the outermost one).
    """

    name: str
    extent: Scalar
    survives_unit_extent: bool = True
    source: Source | None = None

    def copy(self, suffix: str = "", source: Source | None = None) -> IterComponent:
        """Another component of the same extent, with this source."""
        return dataclasses.replace(self, name=f"{self.name}{suffix}", source=source)


@dataclasses.dataclass(eq=False, slots=True)
class Source:
    """How a derived component is computed: (flat // inner) [% extent].

    `radix`: it is one component of a loop that was split, which together take every combination
    of values; False for a quotient or remainder in the minimum of a region.
    """

    flat: Affine
    inner: Scalar
    outermost: bool
    radix: bool = True


@dataclasses.dataclass(eq=False, slots=True)
class Affine:
    """sum(coefficient * component) + constant over distinct components.

    `dropped_if_unit` holds components whose term TVM simplified away where their extent is 1,
    although the component itself survives it (the minimum of a region computed under a loop).
    """

    terms: dict[IterComponent, Scalar]
    constant: Scalar = 0
    dropped_if_unit: frozenset[IterComponent] = frozenset()

    def scaled(self, factor: Scalar) -> Affine:
        terms = {comp: c * factor for comp, c in self.terms.items()}
        return Affine(terms, self.constant * factor, self.dropped_if_unit)

    def plus(self, other: Affine) -> Affine:
        terms = dict(self.terms)
        for component, coefficient in other.terms.items():
            terms[component] = (
                terms[component] + coefficient if component in terms else coefficient
            )
        return Affine(
            terms, self.constant + other.constant, self.dropped_if_unit | other.dropped_if_unit
        )

    def substituted(self, component: IterComponent, value: Affine) -> Affine:
        if component not in self.terms:
            return self
        terms = dict(self.terms)
        coefficient = terms.pop(component)
        return Affine(terms, self.constant, self.dropped_if_unit).plus(value.scaled(coefficient))

    def mentions(self, component: IterComponent) -> Scalar:
        """Condition (0/1) that `component` occurs in the expression TVM holds for this binding."""
        if component not in self.terms:
            return 0
        if component.survives_unit_extent and component not in self.dropped_if_unit:
            return 1
        return scalar.negated(scalar.equal(component.extent, 1))


@dataclasses.dataclass(eq=False, slots=True)
class Loop:
    """A loop around `body`; `thread` names the axis when `kind` is "thread".

    `parallel` and `vector` are conditions (0/1): in a symbolic program whether TVM's
    postprocessors fuse the loop into the parallel or the vectorized one depends on extents.
    """

    components: list[IterComponent]
    body: list[Loop | Block]
    kind: LoopKind = "serial"
    thread: str | None = None
    parallel: Scalar = 0
    vector: Scalar = 0
    annotations: dict[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def extent(self) -> Scalar:
        return product([comp.extent for comp in self.components])


@dataclasses.dataclass(frozen=True, slots=True)
class Iter:
    """A block iterator: its symbol, the extent of its domain [0, extent) and its kind."""

    symbol: sympy.Symbol
    extent: Scalar
    kind: IterKind


@dataclasses.dataclass(eq=False, slots=True)
class Buffer:
    """A tensor in memory. `scope` is global, shared or local; `is_parameter` for arguments."""

    name: str
    shape: tuple[Scalar, ...]
    dtype: str
    dtype_bytes: int
    scope: str = "global"
    is_parameter: bool = False

    @property
    def is_float(self) -> bool:
        return self.dtype.startswith(("float", "bfloat"))


@dataclasses.dataclass(frozen=True, slots=True)
class Access:
    """One element access: buffer and index expressions in the iters of the block."""

    buffer: Buffer
    indices: tuple[sympy.Expr, ...]

    def mapped(self, by: Callable[[sympy.Expr], sympy.Expr]) -> Access:
        """The access with what `by` gives for each index."""
        return Access(self.buffer, tuple(map(by, self.indices)))

    def substituted(self, values: Mapping[sympy.Expr, sympy.Expr]) -> Access:
        """The access with parts of its indices replaced, simultaneously."""
        return self.mapped(lambda index: index.xreplace(values))


@dataclasses.dataclass(frozen=True, slots=True)
class Value:
    """Right-hand side of a store as a tree.

    op: "load" (access set), "const", "iter" (an integer expression of the iters, `expr` set),
        "if" (args: condition, then, else; lazy), "select" (eager), or an operation name as in
        `OPERATION_KINDS` of `symbolic.load`.
    """

    op: str
    is_float: bool
    args: tuple[Value, ...] = ()
    access: Access | None = None
    expr: sympy.Expr | None = None

    @classmethod
    def load(cls, access: Access) -> Value:
        """What is read there."""
        return cls("load", access.buffer.is_float, access=access)

    def replaced(self, by: Callable[[Value], Value | None]) -> Value:
        """The value with its parts replaced for which `by` gives another value."""
        other = by(self)
        if other is not None:
            return other
        args = tuple(arg.replaced(by) for arg in self.args)
        return Value(self.op, self.is_float, args, self.access, self.expr)

    def mapped(self, by: Callable[[sympy.Expr], sympy.Expr]) -> Value:
        """The value with what `by` gives for each index expression in it."""
        args = tuple(arg.mapped(by) for arg in self.args)
        access = None if self.access is None else self.access.mapped(by)
        index = None if self.expr is None else by(self.expr)
        return Value(self.op, self.is_float, args, access, index)

    def substituted(self, values: Mapping[sympy.Expr, sympy.Expr]) -> Value:
        """The value with parts of its index expressions replaced, simultaneously."""
        return self.mapped(lambda index: index.xreplace(values))

    def walk(self) -> Iterator[Value]:
        for arg in self.args:
            yield from arg.walk()
        yield self

    def loads(self) -> list[Access]:
        """Accesses of all loads, children before parents, left to right.

        Loads of an index follow the load that has the index.
        """
        return [access for value in self.walk() for access in value.accesses()]

    def accesses(self) -> list[Access]:
        """The access of this node alone, then those in its indices."""
        direct = [] if self.access is None else [self.access]
        indices = [self.expr] if self.expr is not None else [i for a in direct for i in a.indices]
        inner = [pair for index in indices for pair in loaded.elements(index)]
        return [*direct, *(Access(*pair) for pair in inner)]


@dataclasses.dataclass(frozen=True, slots=True)
class Store:
    """buffer[indices] = value."""

    target: Access
    value: Value

    def substituted(self, values: Mapping[sympy.Expr, sympy.Expr]) -> Store:
        """The store with parts of its index expressions replaced, simultaneously."""
        return Store(self.target.substituted(values), self.value.substituted(values))


@dataclasses.dataclass(eq=False, slots=True)
class Block:
    """A block: iterators bound to affine forms of components, stores, maybe inits.

    stores: one, or those of a tuple reduction, all of whose values are computed before the first
        of them is stored.
    inits: what each store of a reduction begins with; none of other blocks.
    guards: (affine form, bound): the block runs only where form < bound (overhang of a split
        that does not divide).
    is_init: it stores what a reduction begins with, which was moved out of the reduction.
    number: of the blocks made before it under the same name; TVM names copies of one buffer alike.
    """

    name: str
    iters: list[Iter]
    bindings: list[Affine]
    stores: tuple[Store, ...]
    inits: tuple[Store, ...] = ()
    guards: list[tuple[Affine, Scalar]] = dataclasses.field(default_factory=list)
    annotations: dict[str, Any] = dataclasses.field(default_factory=dict)
    is_init: bool = False
    number: int = 0

    @property
    def label(self) -> str:
        """The name, unlike that of any other block of the program."""
        return labelled(self.name, self.number)

    @property
    def bound(self) -> list[tuple[Iter, Affine]]:
        """Each iterator with what it is bound to."""
        return list(zip(self.iters, self.bindings, strict=True))

    @property
    def store(self) -> Store:
        """The only store.

        Raises:
            UnsupportedSchedule: there are several.
        """
        if len(self.stores) != 1:
            raise UnsupportedSchedule(f"block {self.name} stores to several buffers")
        return self.stores[0]

    @property
    def writes(self) -> list[Access]:
        return [store.target for store in self.stores]

    @property
    def reads(self) -> list[Access]:
        """Distinct read accesses in program order; a reduction reads its own target first.

        The order is TVM's: of a reduction block the destination comes first.
        """
        return list(dict.fromkeys(a for store in self.stores for a in store.value.loads()))

    def stores_to(self, buffer: Buffer) -> bool:
        """Whether a store of the block has this target."""
        return any(target.buffer is buffer for target in self.writes)

    @property
    def is_reduction(self) -> bool:
        return any(i.kind == "reduce" for i in self.iters)


@dataclasses.dataclass(eq=False, slots=True)
class SymbolicProgram:
    """A whole function: its buffers and the trees of its root block.

    A buffer is known by identity: programs and TVM's cache instructions repeat names.
    `conditions` are expressions that must be <= 0 for TVM to accept the decisions.
    """

    buffers: list[Buffer]
    body: list[Loop | Block]
    root_annotations: dict[str, Any] = dataclasses.field(default_factory=dict)
    conditions: list[Scalar] = dataclasses.field(default_factory=list)

    def walk(self) -> Iterator[tuple[list[Loop], Block]]:
        """(enclosing loops outermost first, block) of every block, in program order."""
        yield from walk(self.body)

    def block(self, name: str) -> Block:
        for _, block in self.walk():
            if block.name == name:
                return block
        raise KeyError(name)

    def like(
        self, old: Buffer, name: str, shape: tuple[Scalar, ...], scope: str | None = None
    ) -> Buffer:
        """A new buffer of the type of another, and in the same memory unless `scope` says so."""
        made = Buffer(name, shape, old.dtype, old.dtype_bytes, scope or old.scope)
        self.buffers.append(made)
        return made

    def discard(self, buffer: Buffer) -> None:
        """Take out a buffer that nothing accesses any more."""
        self.buffers = [other for other in self.buffers if other is not buffer]

    def names(self) -> tuple[str, ...]:
        """Of all buffers, then of all blocks."""
        blocks = (block.name for _, block in self.walk())
        return (*(buffer.name for buffer in self.buffers), *blocks)

    def loops_of(self, block: Block) -> list[Loop]:
        for loops, other in self.walk():
            if other is block:
                return loops
        raise KeyError(block.name)

    def place_of(self, block: Block) -> int:
        """Where the block, or the nest that it is in, stands in the root's statements."""
        loops = self.loops_of(block)
        top = loops[0] if loops else block
        return next(i for i, node in enumerate(self.body) if node is top)


def labelled(name: str, number: int) -> str:
    """The name of the first of several; any other is told apart by its number."""
    return f"{name}#{number}" if number else name


def walk(
    nodes: Sequence[Loop | Block], outer: Sequence[Loop] = ()
) -> Iterator[tuple[list[Loop], Block]]:
    """(enclosing loops outermost first, block) of every block below, in program order."""
    for node in nodes:
        if isinstance(node, Block):
            yield list(outer), node
        else:
            yield from walk(node.body, [*outer, node])


def blocks_under(node: Loop | Block) -> list[Block]:
    """All blocks of a subtree, in program order."""
    return [block for _, block in walk([node])]


def product(values: Any) -> Scalar:
    """Product of scalars; 1 for none."""
    number: int = 1
    factors: list[sympy.Expr] = []
    for value in values:
        if isinstance(value, int):
            number *= value
        else:
            factors.append(value)
    if not factors:
        return number
    return expr.product(*factors) if number == 1 else expr.product(number, *factors)
