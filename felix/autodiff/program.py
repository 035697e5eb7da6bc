"""Formulas compiled to one batched function: `FormulaProgram`.

A program evaluates a list of sympy expressions at many points at once, exactly or smoothly with
a hand-written reverse pass (`felix.autodiff.torch_function` makes that a torch function). Its
cost is a number of array operations that does not grow with the number of nodes: see
`felix.autodiff.graph` for the graph and `felix.autodiff.passes` for the two passes.

Outputs flagged in `log_outputs` are reported as sign(v) log2(1 + |v|), which is log2(1 + v)
for the non-negative values that features have and stays defined for relaxed ones.
"""

from __future__ import annotations

import io
import json
import zipfile
import zlib
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import sympy
from numpy.typing import NDArray

from felix import errors
from felix.autodiff import graph as expression_graph
from felix.autodiff.passes import Passes

Array = NDArray[np.float64]

#: Version of the serialised form.
FORMAT = 1
#: Values of V that `exact` works on together, so that a block of V stays near the second-level
#: cache, and columns that it has at least, so that array operations are worth their calls.
EXACT_VALUES, EXACT_COLUMNS = 1 << 18, 64
#: What reading damaged bytes can raise on the way.
_DAMAGE = (
    ValueError,
    KeyError,
    IndexError,
    TypeError,
    OSError,
    EOFError,
    zipfile.BadZipFile,
    zlib.error,
    NotImplementedError,
)


class FormulaProgram:
    """A batched function of decision variables: see the module docstring.

    Make one with `compile`, `merge` or `from_bytes`. Immutable once made.
    """

    def __init__(
        self,
        graph: expression_graph.Graph,
        symbols: Sequence[str],
        outputs: Sequence[int],
        log_outputs: Sequence[bool] | None = None,
    ) -> None:
        self.graph = graph
        self.symbols = tuple(symbols)
        self.outputs = tuple(outputs)
        flags = [False] * len(self.outputs) if log_outputs is None else list(log_outputs)
        if len(flags) != len(self.outputs):
            raise ValueError("log_outputs needs one flag an output")
        self.log_outputs = np.asarray(flags, dtype=bool)

    @classmethod
    def compile(
        cls,
        expressions: Sequence[sympy.Expr],
        symbols: Sequence[sympy.Symbol | str],
        log_outputs: Sequence[bool] | None = None,
    ) -> FormulaProgram:
        """Compile expressions over the given symbols, in the order of the input columns.

        Raises:
            UnsupportedSchedule: an expression uses an unknown symbol or function.
        """
        names = [s if isinstance(s, str) else s.name for s in symbols]
        graph = expression_graph.Graph()
        inputs = {name: graph.symbol(i) for i, name in enumerate(names)}
        return cls(graph, names, expression_graph.build(graph, expressions, inputs), log_outputs)

    @classmethod
    def merge(
        cls,
        programs: Sequence[FormulaProgram],
        *,
        share_symbols: bool = False,
        outputs: Sequence[int | None] | None = None,
    ) -> FormulaProgram:
        """One program that evaluates all: inputs and outputs one after another.

        Args:
            programs: what to merge.
            share_symbols: the programs take the same inputs (which stay single), as the features
                and the constraints of one sketch do.
            outputs: which of all outputs to keep, in this order; None stands for 0.
        """
        if share_symbols and any(p.symbols != programs[0].symbols for p in programs):
            raise ValueError("share_symbols needs programs of the same symbols")
        distinct = programs[:1] if share_symbols else programs
        names = [name for program in distinct for name in program.symbols]
        graph = expression_graph.Graph()
        for index in range(len(names)):
            graph.symbol(index)
        merged: list[int] = []
        flags: list[bool] = []
        first = 0
        for program in programs:
            nodes = _copy_nodes(program, graph, first)
            first += 0 if share_symbols else len(program.symbols)
            merged += [nodes[output] for output in program.outputs]
            flags += program.log_outputs.tolist()
        if outputs is not None:
            merged.append(graph.constant(0.0))
            flags.append(False)
            order = [-1 if output is None else output for output in outputs]
            merged, flags = [merged[i] for i in order], [flags[i] for i in order]
        return cls(graph, names, merged, flags)

    @cached_property
    def _log_rows(self) -> NDArray[np.intp]:
        return np.flatnonzero(self.log_outputs)

    @cached_property
    def passes(self) -> Passes:
        """The passes over the nodes that the outputs need."""
        return Passes.make(self.graph, len(self.symbols), self.outputs)

    def exact(self, values: NDArray[Any], *, raw: bool = False) -> Array:
        """Values of the outputs at integer points.

        Args:
            values: [batch, n_symbols] values of the variables.
            raw: skip the log2(1 + v) of flagged outputs.

        Returns:
            [batch, n_outputs]; exact while every intermediate integer is below 2^52.
        """
        points = self._checked(np.asarray(values, dtype=np.float64))
        result = np.empty((len(points), len(self.outputs)))
        size = max(EXACT_COLUMNS, EXACT_VALUES // max(1, self.passes.n_nodes))
        for start in range(0, len(points), size):
            block = points[start : start + size]
            outputs = self.passes.exact(block.T)
            if not raw and len(self._log_rows):
                flagged = outputs.take(self._log_rows, 0)
                outputs[self._log_rows] = signed_log2(flagged)
            result[start : start + size] = outputs.T
        return result

    def _checked(self, points: Array) -> Array:
        if points.ndim != 2 or points.shape[1] != len(self.symbols):
            raise errors.DecisionError(
                f"expected [batch, {len(self.symbols)}] values, got {list(points.shape)}"
            )
        return points

    def to_bytes(self) -> bytes:
        """A portable form without code objects: numpy arrays in an npz archive, not compressed."""
        nodes = expression_graph.reachable(self.graph, (*range(len(self.symbols)), *self.outputs))
        place = {node: i for i, node in enumerate(nodes)}
        arguments = [[place[a] for a in self.graph.arguments[n]] for n in nodes]
        coefficients = [self.graph.coefficients[n] for n in nodes]
        number_of = {kind: number for number, kind in enumerate(expression_graph.KINDS)}
        head = {"format": FORMAT, "kinds": expression_graph.KINDS, "symbols": self.symbols}
        file = io.BytesIO()
        np.savez(
            file,
            head=np.frombuffer(json.dumps(head).encode(), dtype=np.uint8),
            kinds=np.asarray([number_of[self.graph.kinds[n]] for n in nodes], np.uint8),
            n_arguments=np.asarray([len(a) for a in arguments], np.int32),
            n_coefficients=np.asarray([len(c) for c in coefficients], np.int32),
            arguments=np.asarray([a for row in arguments for a in row], np.int32),
            coefficients=np.asarray([c for row in coefficients for c in row], np.float64),
            outputs=np.asarray([place[n] for n in self.outputs], np.int32),
            log_outputs=self.log_outputs,
        )
        return file.getvalue()

    @classmethod
    def from_bytes(cls, data: bytes) -> FormulaProgram:
        """Read what `to_bytes` wrote.

        Raises:
            RecordError: the bytes are damaged, hostile or of another version.
        """
        try:
            with np.load(io.BytesIO(data), allow_pickle=False) as file:
                return cls._from_arrays({name: file[name] for name in file.files})
        except _DAMAGE as error:
            raise errors.RecordError(f"cannot read a compiled formula: {error}") from error

    @classmethod
    def _from_arrays(cls, arrays: dict[str, NDArray[Any]]) -> FormulaProgram:
        head = json.loads(arrays["head"].tobytes().decode())
        if head["format"] != FORMAT or tuple(head["kinds"]) != expression_graph.KINDS:
            raise ValueError("written by another version")
        graph = expression_graph.Graph()
        symbols = [str(name) for name in head["symbols"]]
        arguments_of = _cut(arrays["arguments"], arrays["n_arguments"])
        factors_of = _cut(arrays["coefficients"], arrays["n_coefficients"])
        for node, kind_index in enumerate(arrays["kinds"].tolist()):
            kind = expression_graph.KINDS[kind_index]
            arguments, factors = arguments_of[node], factors_of[node]
            _check_node(kind, arguments, factors, node, len(symbols))
            if graph.add(kind, arguments, factors) != node:
                raise ValueError("nodes repeat")
        outputs = arrays["outputs"].tolist()
        if any(not 0 <= output < len(graph) for output in outputs):
            raise ValueError("an output is out of range")
        if graph.kinds[: len(symbols)] != ["symbol"] * len(symbols):
            raise ValueError("symbols do not come first")
        return cls(graph, symbols, outputs, arrays["log_outputs"].tolist())


def signed_log2(values: Array) -> Array:
    """sign(v) log2(1 + |v|): the scale of flagged outputs."""
    size = np.abs(values)
    size += 1.0
    return np.copysign(np.log2(size, out=size), values)


def _cut(values: NDArray[Any], counts: NDArray[Any]) -> list[tuple[Any, ...]]:
    """The values in pieces of these lengths."""
    plain, pieces, end = values.tolist(), [], 0
    for count in counts.tolist():
        pieces.append(tuple(plain[end : end + count]))
        end += count
    return pieces


def _check_node(
    kind: str, arguments: Sequence[int], factors: Sequence[float], node: int, n_symbols: int
) -> None:
    expected_factors = {"symbol": 1, "constant": 1, "linear": len(arguments)}.get(kind, 0)
    if (
        len(arguments) != expression_graph.ARITY.get(kind, len(arguments))
        or len(factors) != expected_factors
    ):
        raise ValueError("a node has the wrong number of arguments")
    if any(not 0 <= argument < node for argument in arguments):
        raise ValueError("a node comes before its arguments")
    if kind == "symbol" and not (node < n_symbols and factors[0] == node):
        raise ValueError("a symbol is out of place")


def _copy_nodes(
    program: FormulaProgram, graph: expression_graph.Graph, first_symbol: int
) -> dict[int, int]:
    """Add the nodes of a program to another graph; returns old node -> new node."""
    source = program.graph
    placed = {i: graph.symbol(first_symbol + i) for i in range(len(program.symbols))}
    for node in expression_graph.reachable(source, program.outputs):
        if node not in placed:
            arguments = tuple(placed[a] for a in source.arguments[node])
            kind, coefficients = source.kinds[node], source.coefficients[node]
            placed[node] = graph.add(kind, arguments, coefficients)
    return placed


def relative_constraint(constraint: sympy.Expr) -> sympy.Expr:
    """g <= 0 rewritten as ln(1 + positive terms) - ln(1 + negative terms) <= 0.

    Same sign, but a violation counts by its ratio: 2x too many threads and 2x too much shared
    memory weigh the same. Left alone if all terms have one sign (a condition, a logarithm).
    The terms must be non-negative apart from their sign, as sizes and counts are.
    """
    above: list[sympy.Expr] = []
    below: list[sympy.Expr] = []
    for term in sympy.Add.make_args(constraint):
        factor, _ = term.as_coeff_Mul()
        if _has_logarithm(term) or not factor.is_real:
            return constraint
        (above if factor > 0 else below).append(term)
    if not above or not below:
        return constraint
    return _logarithm(1 + sympy.Add(*above)) - _logarithm(1 - sympy.Add(*below))


def _logarithm(value: sympy.Expr) -> sympy.Expr:
    """ln of a value as it stands: sympy takes long to see that a long sum has no simpler one."""
    return sympy.log(value, evaluate=value.is_Number)


def _has_logarithm(expression: sympy.Expr) -> bool:
    """Whether a logarithm is among the nodes; each object is looked at once."""
    known: set[int] = set()
    stack = [expression]
    while stack:
        node = stack.pop()
        if isinstance(node, sympy.log):
            return True
        if id(node) not in known:
            known.add(id(node))
            stack += node.args
    return False
