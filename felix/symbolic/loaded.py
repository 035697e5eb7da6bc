"""Indices that a program loads from buffers, as gathers and embeddings do.

What they are is not known before the program runs; what they depend on is. An `Element` is an
element of a buffer at other indices, an `Operation` is anything computed of elements. Both are
operators of index expressions, and never occur in formulas: an index with one of them has a range
(all of its dimension, or one value) and at most as many values as places it is loaded from.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import sympy
from sympy.core.symbol import Str

from felix.symbolic import expr, scalar
from felix.symbolic.scalar import Scalar


class Origin(sympy.Atom):
    """The buffer that an element is of, by identity."""

    def __new__(cls, buffer: Any) -> Origin:
        origin: Origin = super().__new__(cls)
        origin.buffer = buffer
        return origin

    buffer: Any

    def _hashable_content(self) -> tuple[int, ...]:
        return (id(self.buffer),)

    def _sympystr(self, _printer: Any) -> str:
        return str(self.buffer.name)


class _Data(expr.Whole):
    """Base of the operators whose value is not known."""

    @classmethod
    def eval(cls, *_: Any) -> None:
        return None


class Element(_Data):
    """The element of the buffer of an `Origin`, the first argument, at the other arguments."""


class Operation(_Data):
    """What the operation named by the first argument makes of the other arguments."""


def element(buffer: Any, indices: tuple[sympy.Expr, ...]) -> sympy.Expr:
    """The element of a buffer as an index."""
    return Element(Origin(buffer), *indices)


def operation(name: str, *operands: sympy.Expr) -> sympy.Expr:
    """What is computed of operands of which one is an element."""
    return Operation(Str(name), *operands)


@functools.lru_cache(expr.INTERNED)
def is_data(index: sympy.Expr) -> bool:
    """Whether an index depends on data."""
    return isinstance(index, _Data) or any(is_data(argument) for argument in index.args)


def elements(index: sympy.Expr) -> list[tuple[Any, tuple[sympy.Expr, ...]]]:
    """(buffer, indices) of every element in an index, each before those in its own indices."""
    result = []
    if isinstance(index, Element):
        origin, *indices = index.args
        result.append((origin.buffer, tuple(indices)))
    return result + [pair for argument in index.args for pair in elements(argument)]


def positions(index: sympy.Expr) -> tuple[sympy.Expr, ...]:
    """Indices that do not depend on data and that the value of `index` is a function of."""
    if not is_data(index):
        return (index,) if index.free_symbols else ()
    parts = [part for argument in index.args for part in positions(argument)]
    return tuple(dict.fromkeys(parts))


def stepped(index: sympy.Expr, extent: Scalar) -> sympy.Expr:
    """The index as steps of addresses see it: data are half a dimension from their neighbours.

    Args:
        extent: of the dimension of the index.
    """
    if not is_data(index):
        return index
    return sympy.Add(*positions(index)) * scalar.maximum(1, scalar.floor_div(extent, 2))


def redirected(index: sympy.Expr, old: Any, new: Any) -> sympy.Expr:
    """The index with the elements of one buffer taken from another."""
    return index.xreplace({Origin(old): Origin(new)}) if is_data(index) else index


def replaced(
    index: sympy.Expr, buffer: Any, value_at: Callable[[tuple[sympy.Expr, ...]], sympy.Expr]
) -> sympy.Expr:
    """The index with `value_at(indices)` for every element of a buffer."""
    if not is_data(index):
        return index
    arguments = tuple(replaced(argument, buffer, value_at) for argument in index.args)
    if isinstance(index, Element) and index.args[0].buffer is buffer:
        return value_at(arguments[1:])
    return index.func(*arguments) if arguments else index
