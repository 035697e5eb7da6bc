"""The two passes over an expression graph: index arrays built once, run for every batch.

Notation
    V       values, [n_nodes, batch]; rows in run order: symbols, constants, groups
    X       the reverse buffer, [n_edges + n_nodes + n_outputs, batch]: first d node / d argument
            for each edge of a non-linear node (filled forwards, multiplied by the node's
            gradient backwards), then the gradients of nodes, then those of outputs
    edge    one (node, argument position); the edges of a group lie together, position-major

Backwards, the gradient of a whole group is one sparse matrix times X: ones at the edges that
consume its nodes, coefficients at the linear nodes that do, ones at outputs. Groups run in
reverse order, so all consumers are complete by then. Everything is float64.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import _sparsetools

from felix.autodiff import graph as expression_graph
from felix.autodiff import smoothing

# Sparse matrices times dense ones, without scipy's checks.
#
# A pass multiplies some hundred matrices of a few rows, for which checking the arguments takes
# longer than the product. scipy's own routine is called with arrays that are right by
# construction.

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class SparseRows:
    """A matrix [n, n_columns] by rows: row i has `values[ends[i]:ends[i + 1]]` at `columns`."""

    n_columns: int
    ends: NDArray[np.int32]
    columns: NDArray[np.int32]
    values: Array

    @classmethod
    def make(
        cls, rows: Sequence[tuple[Sequence[int], Sequence[float]]], n_columns: int
    ) -> SparseRows:
        """The matrix of rows (columns, values)."""
        ends = np.cumsum([0, *(len(columns) for columns, _ in rows)], dtype=np.int32)
        columns = np.asarray([c for columns, _ in rows for c in columns], np.int32)
        values = np.asarray([v for _, values in rows for v in values], np.float64)
        return cls(n_columns, ends, columns, values)

    @classmethod
    def of_entries(
        cls,
        rows: NDArray[np.intp],
        columns: NDArray[np.intp],
        values: Array,
        shape: tuple[int, int],
    ) -> SparseRows:
        """The matrix of entries in any order; those of a row are sorted by column."""
        order = np.lexsort((columns, rows))
        ends = np.searchsorted(rows[order], np.arange(shape[0] + 1))
        return cls(
            shape[1],
            ends.astype(np.int32),
            columns[order].astype(np.int32),
            np.asarray(values[order], np.float64),
        )

    @property
    def rows(self) -> NDArray[np.intp]:
        """The row of each value."""
        return np.repeat(np.arange(len(self.ends) - 1), np.diff(self.ends))

    def part(self, start: int, stop: int) -> SparseRows:
        """Rows start..stop."""
        first, last = int(self.ends[start]), int(self.ends[stop])
        ends = self.ends[start : stop + 1] - self.ends[start]
        return SparseRows(self.n_columns, ends, self.columns[first:last], self.values[first:last])

    def multiply(self, dense: Array, out: Array) -> None:
        """Write the product with `dense` [n_columns, k] to `out` [n, k], both C-contiguous."""
        out.fill(0.0)
        _sparsetools.csr_matvecs(
            len(out),
            self.n_columns,
            dense.shape[1],
            self.ends,
            self.columns,
            self.values,
            dense.reshape(-1),
            out.reshape(-1),
        )


_RULES: dict[str, smoothing.Rule] = {
    **{op.__name__: rule for op, rule in smoothing.RULES.items()},
    **smoothing.ARITHMETIC,
    **{f"multiply{n}": smoothing.ARITHMETIC["multiply"] for n in (2, 3, 4)},
}


@dataclass(frozen=True, slots=True)
class _Group:
    """Nodes start..stop of V, all of one kind."""

    kind: str
    start: int
    stop: int
    #: [n_arguments, n] rows of V (empty for linear groups)
    arguments: NDArray[np.intp]
    #: linear groups: [n, start] coefficients over the rows before
    matrix: SparseRows | None
    first_edge: int

    @property
    def last_edge(self) -> int:
        return self.first_edge + self.arguments.size


@dataclass(frozen=True)
class Passes:
    """The passes of one program: index arrays, built once and only read by evaluations.

    Those of the reverse pass are built when it is first needed: most programs never are descended.
    """

    n_symbols: int
    constants: Array
    groups: tuple[_Group, ...]
    n_nodes: int
    n_edges: int
    outputs: NDArray[np.intp]

    @classmethod
    def make(cls, graph: expression_graph.Graph, n_symbols: int, outputs: Sequence[int]) -> Passes:
        used = expression_graph.reachable(graph, outputs)
        constants = [n for n in used if graph.kinds[n] == "constant"]
        ordered = expression_graph.group(graph, used)
        row = {n: n for n in range(n_symbols)}
        row.update({n: n_symbols + i for i, n in enumerate(constants)})
        for _, members in ordered:
            row.update({n: len(row) + i for i, n in enumerate(members)})
        groups: list[_Group] = []
        edge = 0
        for kind, members in ordered:
            groups.append(_make_group(graph, kind, members, row, edge))
            edge = groups[-1].last_edge
        values = np.asarray([graph.coefficients[n][0] for n in constants], np.float64)
        output_rows = np.asarray([row[n] for n in outputs], np.intp)
        return cls(n_symbols, values, tuple(groups), len(row), edge, output_rows)

    @cached_property
    def gathers(self) -> tuple[SparseRows, ...]:
        """Per group, the last one first, then for the symbols: [n, rows of X] gathers the gradient
        of its nodes."""
        return _make_gathers(self.groups, self.n_symbols, self.n_nodes, self.n_edges, self.outputs)

    def _start(self, points: Array) -> Array:
        values = np.empty((self.n_nodes, points.shape[1]))
        values[: self.n_symbols] = points
        values[self.n_symbols : self.n_symbols + len(self.constants)] = self.constants[:, None]
        return values

    def exact(self, points: Array) -> Array:
        """[n_outputs, batch] from [n_symbols, batch]."""
        values = self._start(points)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            for group in self.groups:
                target = values[group.start : group.stop]
                if group.matrix is not None:
                    group.matrix.multiply(values[: group.start], target)
                else:
                    arguments = [values.take(rows, 0) for rows in group.arguments]
                    target[:] = _RULES[group.kind].exact(*arguments)
        return values.take(self.outputs, 0)

    def forward(self, points: Array, temperature: smoothing.Temperature) -> tuple[Array, Array]:
        """Smooth raw values [n_outputs, batch] at [n_symbols, batch], and X for `backward`."""
        values = self._start(points)
        buffer = np.empty((self.n_edges + self.n_nodes + len(self.outputs), points.shape[1]))
        for group in self.groups:
            target = values[group.start : group.stop]
            if group.matrix is not None:
                group.matrix.multiply(values[: group.start], target)
                continue
            arguments = tuple(values.take(rows, 0) for rows in group.arguments)
            target[:], partials = _RULES[group.kind].smooth(arguments, temperature)
            size = group.stop - group.start
            for position, partial in enumerate(partials):
                first = group.first_edge + position * size
                buffer[first : first + size] = partial
        return values.take(self.outputs, 0), buffer

    def backward(self, buffer: Array, gradient: Array) -> Array:
        """Gradient [n_symbols, batch] from X and d/d raw outputs [n_outputs, batch]; uses X up."""
        buffer[self.n_edges + self.n_nodes :] = gradient
        for group, gather in zip(reversed(self.groups), self.gathers[:-1], strict=True):
            if group.matrix is not None:
                first = self.n_edges + group.start
                gather.multiply(buffer, buffer[first : self.n_edges + group.stop])
            else:
                node_gradients = np.empty((group.stop - group.start, buffer.shape[1]))
                gather.multiply(buffer, node_gradients)
                edges = buffer[group.first_edge : group.last_edge]
                edges.reshape(len(group.arguments), *node_gradients.shape)[:] *= node_gradients
        result = np.empty((self.n_symbols, buffer.shape[1]))
        self.gathers[-1].multiply(buffer, result)
        return result


def _make_group(
    graph: expression_graph.Graph, kind: str, members: list[int], row: dict[int, int], edge: int
) -> _Group:
    start = row[members[0]]
    stop = start + len(members)
    if kind != "linear":
        rows = [[row[a] for a in graph.arguments[n]] for n in members]
        return _Group(kind, start, stop, np.asarray(rows, np.intp).T.copy(), None, edge)
    terms = [([row[a] for a in graph.arguments[n]], graph.coefficients[n]) for n in members]
    matrix = SparseRows.make(terms, start)
    return _Group(kind, start, stop, np.empty((0, len(members)), np.intp), matrix, edge)


def _make_gathers(
    groups: Sequence[_Group], n_symbols: int, n_nodes: int, n_edges: int, outputs: NDArray[np.intp]
) -> tuple[SparseRows, ...]:
    """The matrix of all (node, consumer) pairs, cut into the rows of each group."""
    source, column, weight = [outputs], [n_edges + n_nodes + np.arange(len(outputs))], []
    weight.append(np.ones(len(outputs)))
    for group in groups:
        if group.matrix is not None:
            source.append(group.matrix.columns.astype(np.intp))
            column.append(n_edges + group.start + group.matrix.rows)
            weight.append(group.matrix.values)
        else:
            source.append(group.arguments.ravel())
            column.append(group.first_edge + np.arange(group.arguments.size))
            weight.append(np.ones(group.arguments.size))
    shape = (n_nodes, n_edges + n_nodes + len(outputs))
    whole = SparseRows.of_entries(
        np.concatenate(source), np.concatenate(column), np.concatenate(weight), shape
    )
    cuts = [whole.part(group.start, group.stop) for group in reversed(groups)]
    return (*cuts, whole.part(0, n_symbols))
