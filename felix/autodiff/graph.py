"""The expression graph of a program: hash-consed nodes, then groups of equal kind.

A formula set of one sketch has thousands of distinct subexpressions and a batch of a few seeds,
so the cost of an evaluation is the number of array operations, not of floats. Nodes of one kind
that are ready at the same time therefore form a *group*, evaluated in one go over the matrix of
all values [n_nodes, batch]; a set of 3,000 to 6,000 nodes needs some 40 to 130 groups.

Kinds: `symbol`, `constant`, `linear` (sum of coefficient x node), `multiply2..4`, `divide`,
`power`, `log`, `exp`, and the name of every operator of `symbolic.expr` but And and Not, which
are a product and a linear form. Quotients stay quotients (6 * (1/3) is not 2 in floating point),
so values are exact as long as they are integers below 2^53.
"""

from __future__ import annotations

import collections
import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import sympy

from felix import errors
from felix.symbolic import expr

#: Largest number of factors one multiplication node takes; longer products become trees.
MAX_FACTORS = 4

_OPERATOR_KINDS = {op: op.__name__ for op in expr.OPERATORS if op not in (expr.And, expr.Not)}
#: Kind -> number of arguments, where it is fixed.
ARITY: dict[str, int] = {
    "symbol": 0,
    "constant": 0,
    "multiply2": 2,
    "multiply3": 3,
    "multiply4": 4,
    "divide": 2,
    "power": 2,
    "log": 1,
    "exp": 1,
    **{name: int(op.nargs.args[0]) for op, name in _OPERATOR_KINDS.items()},
}
#: Every node kind, in the order used by the serialised form; linear ones have any number.
KINDS: tuple[str, ...] = (*list(ARITY)[:2], "linear", *list(ARITY)[2:])

#: A node with a factor: the value is factor * node. Keeps 3xy and xy one node.
_Scaled = tuple[float, int]


@dataclass(slots=True)
class Graph:
    """Nodes in an order where arguments come first; equal nodes are one node.

    `coefficients[i]` holds a linear node's factors, a constant's value, and is empty otherwise.
    """

    kinds: list[str] = field(default_factory=list)
    arguments: list[tuple[int, ...]] = field(default_factory=list)
    coefficients: list[tuple[float, ...]] = field(default_factory=list)
    _known: dict[tuple[Any, ...], int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.kinds)

    def add(
        self, kind: str, arguments: tuple[int, ...] = (), coefficients: tuple[float, ...] = ()
    ) -> int:
        """The node of this kind and arguments, made if new."""
        key = (kind, arguments, coefficients)
        node = self._known.get(key)
        if node is None:
            node = self._known[key] = len(self.kinds)
            self.kinds.append(kind)
            self.arguments.append(arguments)
            self.coefficients.append(coefficients)
        return node

    def symbol(self, index: int) -> int:
        """The node of input number `index`."""
        return self.add("symbol", (), (float(index),))

    def constant(self, value: float) -> int:
        """The node of a number."""
        return self.add("constant", (), (value,))

    def linear(self, terms: Iterable[_Scaled]) -> int:
        """sum of factor * node, equal nodes collected; a lone node is returned as it is."""
        total: dict[int, float] = {}
        for factor, node in terms:
            total[node] = total.get(node, 0.0) + factor
        pairs = sorted((node, factor) for node, factor in total.items() if factor != 0.0)
        if not pairs:
            return self.constant(0.0)
        if len(pairs) == 1 and pairs[0][1] == 1.0:
            return pairs[0][0]
        return self.add("linear", tuple(n for n, _ in pairs), tuple(f for _, f in pairs))

    def product(self, factors: Sequence[int]) -> int:
        """The product of nodes as a shallow tree; sorted first, so that equal parts are shared."""
        level = sorted(factors)
        if not level:
            return self.constant(1.0)
        while len(level) > 1:
            level = [
                self._multiply(level[i : i + MAX_FACTORS])
                for i in range(0, len(level), MAX_FACTORS)
            ]
        return level[0]

    def _multiply(self, factors: list[int]) -> int:
        if len(factors) == 1:
            return factors[0]
        return self.add(f"multiply{len(factors)}", tuple(factors))


def build(graph: Graph, expressions: Sequence[sympy.Expr], symbols: dict[str, int]) -> list[int]:
    """Add sympy expressions to the graph; returns the node of each.

    The walk is an explicit stack with a memo by object identity (formulas are deep, and
    comparing them structurally is exponential in the worst case); equal subexpressions held in
    different objects still meet in the graph's own hash-consing.

    Raises:
        UnsupportedSchedule: an expression uses an unknown symbol or function.
    """
    memo: dict[int, _Scaled] = {}
    for root in expressions:
        stack = [root]
        while stack:
            node = stack[-1]
            if id(node) in memo:
                stack.pop()
                continue
            parts = (node.definition,) if isinstance(node, expr.SharedSubexpr) else node.args
            missing = [a for a in parts if id(a) not in memo]
            if missing and not node.is_Number:
                stack.extend(missing)
                continue
            memo[id(node)] = _convert(graph, node, [memo[id(a)] for a in parts], symbols)
            stack.pop()
    return [_materialise(graph, memo[id(root)]) for root in expressions]


def _materialise(graph: Graph, scaled: _Scaled) -> int:
    factor, node = scaled
    return node if factor == 1.0 else graph.linear([scaled])


def _convert(
    graph: Graph, node: sympy.Expr, args: list[_Scaled], symbols: dict[str, int]
) -> _Scaled:
    """One sympy node whose arguments are known, as factor * graph node."""
    if isinstance(node, expr.SharedSubexpr):
        return args[0]
    if node.is_Symbol:
        if node.name not in symbols:
            raise errors.UnsupportedSchedule(f"formula uses an unknown variable {node.name!r}")
        return 1.0, symbols[node.name]
    if not node.args and node.is_number:
        return 1.0, graph.constant(_number(node))
    if node.is_Add:
        return 1.0, graph.linear(args)
    if node.is_Mul:
        return _convert_product(graph, node, args)
    if node.is_Pow:
        return _convert_power(graph, node, args)
    handler = _FUNCTIONS.get(type(node))
    if handler is None:
        raise errors.UnsupportedSchedule(f"formula uses an unknown function {node.func}")
    return 1.0, handler(graph, [_materialise(graph, a) for a in args])


def _number(value: sympy.Expr) -> float:
    if not (value.is_real and value.is_finite):
        raise errors.UnsupportedSchedule(f"formula has a constant {value} that is not a number")
    return float(value)


def _convert_product(graph: Graph, node: sympy.Mul, args: list[_Scaled]) -> _Scaled:
    """factor * product / product: negative powers gather in one divisor, fractions too."""
    factor, above, below, divisor = 1.0, [], [], 1
    for part, (scale, index) in zip(node.args, args, strict=True):
        if part.is_Rational:
            factor *= int(part.p)
            divisor *= int(part.q)
        elif part.is_Number:
            factor *= float(part)
        elif graph.kinds[index] == "divide":
            factor *= scale
            numerator, denominator = graph.arguments[index]
            above.extend([] if numerator == graph.constant(1.0) else [numerator])
            below.append(denominator)
        else:
            factor *= scale
            above.append(index)
    if divisor != 1:
        below.append(graph.constant(float(divisor)))
    if not below:
        return factor, graph.product(above)
    numerator = _materialise(graph, (factor, graph.product(above)))
    return 1.0, graph.add("divide", (numerator, graph.product(below)))


def _convert_power(graph: Graph, node: sympy.Pow, args: list[_Scaled]) -> _Scaled:
    exponent = node.exp
    base = _materialise(graph, args[0])
    if not exponent.is_Integer:
        return 1.0, graph.add("power", (base, _materialise(graph, args[1])))
    power = graph.product([base] * abs(int(exponent)))
    if exponent > 0:
        return 1.0, power
    return 1.0, graph.add("divide", (graph.constant(1.0), power))


def _operator(kind: str, commutes: bool) -> Callable[[Graph, list[int]], int]:
    if commutes:
        return lambda graph, args: graph.add(kind, tuple(sorted(args)))
    return lambda graph, args: graph.add(kind, tuple(args))


_COMMUTATIVE = (expr.Minimum, expr.Maximum, expr.Equal, expr.Or)
_FUNCTIONS: dict[type[Any], Callable[[Graph, list[int]], int]] = {
    **{op: _operator(name, op in _COMMUTATIVE) for op, name in _OPERATOR_KINDS.items()},
    expr.And: lambda graph, args: graph.product(args),
    expr.Not: lambda graph, args: graph.linear([(1.0, graph.constant(1.0)), (-1.0, args[0])]),
    sympy.log: lambda graph, args: graph.add("log", tuple(args)),
    sympy.exp: lambda graph, args: graph.add("exp", tuple(args)),
}


def reachable(graph: Graph, outputs: Iterable[int]) -> list[int]:
    """The nodes that the outputs depend on, in graph order."""
    is_used = [False] * len(graph)
    for output in outputs:
        is_used[output] = True
    for node in range(len(graph) - 1, -1, -1):
        if is_used[node]:
            for argument in graph.arguments[node]:
                is_used[argument] = True
    return [node for node, used in enumerate(is_used) if used]


def group(graph: Graph, nodes: Sequence[int]) -> list[tuple[str, list[int]]]:
    """Partition nodes (symbols and constants left out) into groups of one kind, in run order.

    Greedy: a kind whose remaining nodes are all ready comes first, because they need one group
    whenever that is. Else the kind whose ready nodes have the longest way to an output, because
    what depends on them holds other kinds up. Nodes of a group never depend on each other.
    """
    operators = [n for n in nodes if graph.kinds[n] not in ("symbol", "constant")]
    consumers: dict[int, list[int]] = {node: [] for node in operators}
    waiting: dict[int, int] = {}
    for node in operators:
        pending = {a for a in graph.arguments[node] if a in consumers}
        waiting[node] = len(pending)
        for argument in pending:
            consumers[argument].append(node)
    #: operators on the longest way from each to an output
    height: dict[int, int] = {}
    for node in reversed(operators):
        height[node] = 1 + max((height[consumer] for consumer in consumers[node]), default=0)
    remaining = collections.Counter(graph.kinds[node] for node in operators)
    ready: dict[str, list[int]] = {}
    #: of the ready nodes of each kind
    highest: dict[str, int] = {}

    def now_ready(node: int) -> None:
        kind = graph.kinds[node]
        ready.setdefault(kind, []).append(node)
        highest[kind] = max(highest.get(kind, 0), height[node])

    for node in operators:
        if not waiting[node]:
            now_ready(node)
    groups: list[tuple[str, list[int]]] = []
    while ready:
        kind = max(ready, key=lambda k: _urgency(len(ready[k]), remaining[k], highest[k], k))
        members = ready.pop(kind)
        del highest[kind]
        remaining[kind] -= len(members)
        groups.append((kind, members))
        for consumer in itertools.chain.from_iterable(consumers[member] for member in members):
            waiting[consumer] -= 1
            if not waiting[consumer]:
                now_ready(consumer)
    return groups


def _urgency(
    n_ready: int, n_remaining: int, height: int, kind: str
) -> tuple[bool, int, float, str]:
    share = n_ready / n_remaining
    return share == 1, height, share, kind
