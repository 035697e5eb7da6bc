"""Products of sparse matrices and dense ones, compared with numpy's."""

from __future__ import annotations

import numpy as np

from felix.autodiff import sparse


def product(matrix: sparse.SparseRows, dense: sparse.Array) -> sparse.Array:
    """The product, in memory that held something else."""
    out = np.full((len(matrix.ends) - 1, dense.shape[1]), np.nan)
    matrix.multiply(dense, out)
    return out


def test_rows_times_a_dense_matrix() -> None:
    rows = [([0, 3], [1.0, -2.0]), ([], []), ([2], [0.5])]
    matrix = sparse.SparseRows.make(rows, 4)
    dense = np.arange(8.0).reshape(4, 2)
    assert product(matrix, dense).tolist() == [[-12.0, -13.0], [0.0, 0.0], [2.0, 2.5]]
    assert matrix.rows.tolist() == [0, 0, 2]


def test_entries_in_any_order_and_parts_of_their_rows() -> None:
    rng = np.random.default_rng(0)
    whole = np.where(rng.random((7, 9)) < 0.4, rng.normal(size=(7, 9)), 0.0)
    entries = rng.permutation(np.argwhere(whole))
    rows, columns = entries.T
    matrix = sparse.SparseRows.of_entries(rows, columns, whole[rows, columns], whole.shape)
    dense = rng.normal(size=(9, 3))
    np.testing.assert_allclose(product(matrix, dense), whole @ dense, atol=1e-12)
    np.testing.assert_allclose(product(matrix.part(2, 5), dense), (whole @ dense)[2:5], atol=1e-12)
