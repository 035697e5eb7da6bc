"""Chains of row reductions: with an operand that all rows share, or with little left of a row."""

from __future__ import annotations

from tvm import te, tirx, topi

from felix.task import Task


def masked_softmax(rows: int, columns: int, target: str, dtype: str = "float32") -> Task:
    """softmax(x / 8 + mask), a mask [columns] for all rows."""
    x, mask = (
        te.placeholder((rows, columns), dtype, "x"),
        te.placeholder((columns,), dtype, "mask"),
    )
    scores = topi.add(topi.multiply(x, tirx.const(0.125, dtype)), mask)
    return Task.from_te([x, mask, topi.nn.softmax(scores, axis=1)], target, "masked_softmax")


def biased_layer_norm(rows: int, columns: int, target: str, dtype: str = "float32") -> Task:
    """layer_norm(x + bias) * gamma + beta, all three vectors [columns]."""
    x = te.placeholder((rows, columns), dtype, "x")
    bias, gamma, beta = (te.placeholder((columns,), dtype, n) for n in ("bias", "gamma", "beta"))
    result = topi.nn.layer_norm(topi.add(x, bias), gamma, beta, [1], 1e-5)
    return Task.from_te([x, bias, gamma, beta, result], target, "biased_layer_norm")


def biased_rms_norm(rows: int, columns: int, target: str, dtype: str = "float32") -> Task:
    """rms_norm(x + bias) * gamma, both vectors [columns]."""
    x = te.placeholder((rows, columns), dtype, "x")
    bias, gamma = (te.placeholder((columns,), dtype, name) for name in ("bias", "gamma"))
    result = topi.nn.rms_norm(topi.add(x, bias), gamma, [1], 1e-5)
    return Task.from_te([x, bias, gamma, result], target, "biased_rms_norm")


def row_statistics(rows: int, columns: int, target: str, dtype: str = "float32") -> Task:
    """The deviation and the mean of every row: [2, rows]."""
    x, k = te.placeholder((rows, columns), dtype, "x"), te.reduce_axis((0, columns), "k")
    total = te.compute((rows,), lambda i: te.sum(x[i, k].astype("float32"), k), "total")
    k = te.reduce_axis((0, columns), "k")

    def squared(i: tirx.PrimExpr) -> tirx.PrimExpr:
        away = x[i, k].astype("float32") - total[i] / columns
        return te.sum(away * away, k)

    squares = te.compute((rows,), squared, "squares")
    result = te.compute(
        (2, rows),
        lambda which, i: tirx.if_then_else(
            which == 0, tirx.sqrt(squares[i] / columns), total[i] / columns
        ),
        "statistics",
    )
    return Task.from_te([x, result], target, "row_statistics")


#: Each takes rows, columns, a target and an element type.
PROGRAMS = {
    "softmax": masked_softmax,
    "layer_norm": biased_layer_norm,
    "rms_norm": biased_rms_norm,
    "row_statistics": row_statistics,
}
