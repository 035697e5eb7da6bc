"""The vocabulary of Felix formulas: a few non-differentiable operators over sympy expressions.

sympy's own `floor`, `Mod`, `Min`, `Piecewise` try hard to simplify on construction, which costs
milliseconds per node on the expressions met here. The functions below fold constants and the
identities that hold for positive integers, and otherwise stay inert. Conditions are numbers, 0
or 1, so that every operator is a real function with one smooth form (`felix.autodiff.smoothing`).

Notation: all decision variables are positive integers; `a`, `b` are integer-valued expressions,
`b` > 0 wherever it divides.
"""

from __future__ import annotations

import functools
import operator
import weakref
from typing import Any, cast

import sympy
from sympy import Expr, Integer

ZERO, ONE = Integer(0), Integer(1)


#: Size of the caches of operators and products; a structure has some thousands.
INTERNED = 1 << 15


#: (operator, its arguments) -> the operator of these arguments, while something holds it.
_ALIVE: weakref.WeakValueDictionary[tuple[Any, ...], Expr] = weakref.WeakValueDictionary()


@functools.lru_cache(INTERNED)
def _interned(operator: Any, *arguments: Any) -> Expr:
    """The operator of these arguments, or what it folds to; sympy's own way there is slow."""
    args = tuple(map(sympy.sympify, arguments))
    made = _ALIVE.get((operator, *args))
    if made is not None:
        return made
    folded = operator.eval(*args)
    if folded is not None:
        return cast(Expr, folded)
    made = _ALIVE[(operator, *args)] = Expr.__new__(operator, *args)
    return made


class _Operator(sympy.Function):
    """Base of the operators: real valued, never rewritten by sympy after construction.

    Equal operators are one object, which makes comparing the expressions they occur in cheap:
    sympy compares different objects part by part, as often as a part occurs.
    """

    def __new__(cls, *args: Any) -> Any:
        operator: Any = cls
        return _interned(operator, *args)

    is_real = True
    is_commutative = True
    is_finite = True
    is_infinite = False
    is_extended_real = True


class Whole(_Operator):
    """Base of the operators whose value is an integer, whatever the arguments."""

    is_integer = True


class _Picked(_Operator):
    """Base of the operators whose value is one of the arguments.

    Whether that is an integer is left open: asking the arguments costs seconds where such
    operators are nested deeply, and no rule here needs the answer.
    """


class _Quotient(Whole):
    """Base of quotients of integers, rounded to an integer."""

    nargs = 2
    is_nonnegative = True
    #: 1 where it is rounded down, -1 where up.
    _sign: int

    @classmethod
    def eval(cls, a: Expr, b: Expr) -> Expr | None:
        if b is ONE or a is ZERO:
            return a
        if a.is_Integer and b.is_Integer:
            return Integer(cls._sign * (cls._sign * int(a) // int(b)))
        quotient = a / b
        return quotient if divides(quotient) else None


class FloorDiv(_Quotient):
    """floor(a / b)."""

    _sign = 1


class CeilDiv(_Quotient):
    """ceil(a / b)."""

    _sign = -1


class FloorMod(Whole):
    """a - b * floor(a / b), in [0, b)."""

    nargs = 2
    is_nonnegative = True

    @classmethod
    def eval(cls, a: Expr, b: Expr) -> Expr | None:
        if b is ONE or a is ZERO:
            return ZERO
        if a.is_Integer and b.is_Integer:
            return Integer(int(a) % int(b))
        return ZERO if divides(a / b) else None


class _Extremum(_Picked):
    """Base of the lesser and the greater of two values."""

    nargs = 2
    _of: Any

    @classmethod
    def eval(cls, a: Expr, b: Expr) -> Expr | None:
        if a == b:
            return a
        return cls._of(a, b) if a.is_Number and b.is_Number else None


class Minimum(_Extremum):
    """min(a, b)."""

    _of = min


class Maximum(_Extremum):
    """max(a, b)."""

    _of = max


class Absolute(_Picked):
    """|a|."""

    nargs = 1
    is_nonnegative = True

    @classmethod
    def eval(cls, a: Expr) -> Expr | None:
        if a.is_Number:
            return abs(a)
        return a if is_nonnegative(a) else None


class _Rounded(Whole):
    """Base of what a real number is rounded to."""

    nargs = 1
    _of: Any

    @classmethod
    def eval(cls, a: Expr) -> Expr | None:
        if a.is_Number:
            return cls._of(a)
        return a if a.is_integer else None


class Floor(_Rounded):
    """Largest integer not above a (any real a)."""

    _of = sympy.floor


class Ceiling(_Rounded):
    """Smallest integer not below a (any real a)."""

    _of = sympy.ceiling


class _Comparison(Whole):
    """Base of comparisons: 1 or 0."""

    nargs = 2
    is_nonnegative = True
    _of: Any

    @classmethod
    def eval(cls, a: Expr, b: Expr) -> Expr | None:
        if a == b:
            a = b = ZERO
        return Integer(bool(cls._of(a, b))) if a.is_Number and b.is_Number else None


class Less(_Comparison):
    """1 if a < b else 0."""

    _of = operator.lt


class LessEqual(_Comparison):
    """1 if a <= b else 0."""

    _of = operator.le


class Equal(_Comparison):
    """1 if a == b else 0."""

    _of = operator.eq


class And(Whole):
    """Both conditions: 1 if a and b are 1, else 0."""

    nargs = 2
    is_nonnegative = True

    @classmethod
    def eval(cls, a: Expr, b: Expr) -> Expr | None:
        if a is ZERO or b is ZERO:
            return ZERO
        if a is ONE or a == b:
            return b
        return a if b is ONE else None


class Or(Whole):
    """Either condition: 1 if a or b is 1, else 0."""

    nargs = 2
    is_nonnegative = True

    @classmethod
    def eval(cls, a: Expr, b: Expr) -> Expr | None:
        if a is ONE or b is ONE:
            return ONE
        if a is ZERO or a == b:
            return b
        return a if b is ZERO else None


class Not(Whole):
    """1 - a, for a condition a."""

    nargs = 1
    is_nonnegative = True

    @classmethod
    def eval(cls, a: Expr) -> Expr | None:
        if a is ZERO or a is ONE:
            return ONE - a
        return a.args[0] if isinstance(a, Not) else None


class Select(_Picked):
    """a if condition is 1, b if it is 0."""

    nargs = 3

    @classmethod
    def eval(cls, condition: Expr, a: Expr, b: Expr) -> Expr | None:
        if condition is ONE or a == b:
            return a
        return b if condition is ZERO else None


#: Every operator above; `felix.autodiff.smoothing` has one rule for each and a test that says so.
OPERATORS: tuple[type[Any], ...] = (
    FloorDiv,
    CeilDiv,
    FloorMod,
    Minimum,
    Maximum,
    Absolute,
    Floor,
    Ceiling,
    Less,
    LessEqual,
    Equal,
    And,
    Or,
    Not,
    Select,
)


class SharedSubexpr(sympy.Dummy):
    """A symbol that stands for a long expression, its `definition`.

    sympy flattens, sorts and compares the arguments of every sum and product, which takes most
    of the time where long expressions are built of long expressions; shared, they are one symbol.
    """

    definition: Expr


@functools.lru_cache(INTERNED)
def product(*factors: Expr | int) -> Expr:
    """Product of expressions, made once for equal factors."""
    return factors[0] if len(factors) == 1 else sympy.Mul(*factors)


def share(value: Any) -> Any:
    """A `SharedSubexpr` that stands for `value`; numbers and symbols stay what they are."""
    if not isinstance(value, Expr) or value.is_Atom:
        return value
    symbol = SharedSubexpr("shared", real=True)
    symbol.definition = value
    return symbol


def resolved(expression: Expr, known: dict[SharedSubexpr, Expr] | None = None) -> Expr:
    """The expression with every shared subexpression replaced by its definition.

    Args:
        known: those resolved before; pass one dict for several expressions.
    """
    known = {} if known is None else known
    for symbol in expression.atoms(SharedSubexpr):
        if symbol not in known:
            known[symbol] = resolved(symbol.definition, known)
    return expression.xreplace(known)


@functools.lru_cache(INTERNED)
def expanded(value: Expr | int) -> Expr:
    """The value with products and powers of sums multiplied out, inside of operators as well.

    sympy's own `expand` walks an expression as a tree, which takes minutes where large parts occur
    many times in each other; here each part is expanded once. It also splits logarithms and
    exponents, which it looks for node by node.
    """
    if isinstance(value, Expr) and all(map(is_monomial, sympy.Add.make_args(value))):
        return value
    value = sympy.sympify(value)
    parts = tuple(map(expanded, value.args))
    if parts != value.args:
        value = value.func(*parts)
    return value.expand(deep=False, log=False, power_base=False, power_exp=False, basic=False)


def is_monomial(value: Expr) -> bool:
    """Whether a value is a number, or a product of numbers and powers of variables."""
    return all(
        factor.is_Number or factor.is_Symbol or (factor.is_Pow and factor.base.is_Symbol)
        for factor in sympy.Mul.make_args(value)
    )


def divides(quotient: Expr) -> bool:
    """True if `quotient` is visibly an integer: no negative power of a variable, no fraction.

    Sufficient, not necessary: a sum is accepted term by term.
    """
    for term in sympy.Add.make_args(quotient):
        coefficient, rest = term.as_coeff_Mul()
        if not coefficient.is_Integer:
            return False
        for factor in sympy.Mul.make_args(rest):
            if factor.is_Pow and not (factor.exp.is_Integer and factor.exp > 0):
                return False
    return True


def is_nonnegative(value: Expr) -> bool:
    """True if `value` is visibly not below 0: sums, products and powers of what is not.

    Sufficient, not necessary: sympy also bounds differences, which takes it long.
    """
    if value.is_Number:
        return bool(value >= 0)
    if isinstance(value, (sympy.Add, sympy.Mul, sympy.Pow)):
        return all(map(is_nonnegative, value.args[:1] if value.is_Pow else value.args))
    if isinstance(value, (Minimum, Maximum, Select)):
        return all(map(is_nonnegative, value.args[-2:]))
    return isinstance(value, (sympy.Symbol, _Operator)) and value.is_nonnegative is True


def variable(name: str) -> sympy.Symbol:
    """A decision variable: a positive integer symbol."""
    return sympy.Symbol(name, integer=True, positive=True)
