"""Sparse matrices times dense ones, without scipy's checks.

A pass multiplies some hundred matrices of a few rows, for which checking the arguments takes
longer than the product. scipy's own routine is called with arrays that are right by construction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import _sparsetools

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
