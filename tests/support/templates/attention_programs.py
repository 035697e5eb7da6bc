"""Programs with parts of attention: masks, heads side by side in a tensor, shared heads."""

from __future__ import annotations

import tvm
from tvm import te, tirx, topi

import felix


def _module(*tensors: te.Tensor) -> tvm.IRModule:
    return felix.Task.from_te(list(tensors), "llvm", name="program").mod


def _product(m: int, n: int, k: int = 8, batch: int = 0) -> tuple[te.Tensor, ...]:
    """Two operands and their product."""
    lead = (batch,) if batch else ()
    a, b = te.placeholder((*lead, m, k), name="a"), te.placeholder((*lead, k, n), name="b")
    r = te.reduce_axis((0, k), name="k")

    def value(*at: tirx.Var) -> tirx.Expr:
        *outer, i, j = at
        return te.sum(a[(*outer, i, r)] * b[(*outer, r, j)], r)

    return a, b, te.compute((*lead, m, n), value, "y")


def masked(kind: str) -> tvm.IRModule:
    """Products some of whose elements are replaced by where they lie."""
    a, b, y = _product(6, 10, batch=3)
    lengths = te.placeholder((3,), name="lengths", dtype="int32")

    def value(h: tirx.Var, i: tirx.Var, j: tirx.Var) -> tirx.Expr:
        x = y[h, i, j] * 0.5
        match kind:
            case "causal":
                return tirx.Select(j > i + 4, tirx.const(-1e4, "float32"), x)
            case "lengths":
                return te.if_then_else(j < lengths[h], x, -1e4)
            case "window":
                return te.if_then_else(tirx.all(j <= i + 4, i < j + 2), x, 0.0)
            case "slopes":
                return x - (h + 1).astype("float32") * (tirx.max(i, j) - j).astype("float32")
        return te.if_then_else((i * 10 + j) // 7 % 2 == 0, x, h.astype("float32"))

    params = (a, b, lengths) if kind == "lengths" else (a, b)
    return _module(*params, te.compute((3, 6, 10), value, "z"))


def masked_heads() -> tvm.IRModule:
    """Rows that are split behind the product: places are of parts of an axis."""
    a, b, y = _product(12, 20)
    heads = topi.transpose(topi.reshape(y, (12, 4, 5)), (1, 0, 2))

    def value(h: tirx.Var, s: tirx.Var, d: tirx.Var) -> tirx.Expr:
        return te.if_then_else(h <= s // 3 + d, heads[h, s, d], 1.0)

    return _module(a, b, te.compute((4, 12, 5), value, "z"))


def fused_qkv(
    which: str, batch: int = 2, rows: int = 6, heads: int = 4, dim: int = 8, dtype: str = "float16"
) -> tvm.IRModule:
    """Scores of heads of queries and keys, or mixed values, that lie side by side in a tensor.

    The tensor is [batch, sequence, 3 x heads x dim].
    """
    qkv = te.placeholder((batch, rows, 3 * heads * dim), name="qkv", dtype=dtype)
    parts = topi.split(qkv, 3, axis=2)
    q, key, v = (topi.reshape(part, (batch, rows, heads, dim)) for part in parts)
    if which == "scores":
        k = te.reduce_axis((0, dim), name="k")

        def score(b: tirx.Var, h: tirx.Var, s: tirx.Var, t: tirx.Var) -> tirx.Expr:
            pair = (q[b, s, h, k], key[b, t, h, k])
            return te.sum(pair[0].astype("float32") * pair[1].astype("float32"), k)

        y = te.compute((batch, heads, rows, rows), score, "scores")
        masked = te.compute(
            y.shape,
            lambda b, h, s, t: tirx.Select(t <= s, y[b, h, s, t] * 0.3, tirx.const(-9.0)),
            "masked",
        )
        return _module(qkv, masked)
    weights = te.placeholder((batch, heads, rows, rows), name="weights", dtype=dtype)
    t = te.reduce_axis((0, rows), name="t")

    def mixed(b: tirx.Var, s: tirx.Var, h: tirx.Var, d: tirx.Var) -> tirx.Expr:
        return te.sum(weights[b, h, s, t].astype("float32") * v[b, t, h, d].astype("float32"), t)

    y = te.compute((batch, rows, heads, dim), mixed, "mixed")
    return _module(qkv, weights, topi.reshape(y, (batch, rows, heads * dim)))


def grouped_queries() -> tvm.IRModule:
    """Groups of 3 heads of queries share a head of keys."""
    q = te.placeholder((2, 5, 6, 8), name="q")
    key = te.placeholder((2, 7, 2, 8), name="key")
    k = te.reduce_axis((0, 8), name="k")
    return _module(
        q,
        key,
        te.compute(
            (6, 5, 7), lambda h, s, t: te.sum(q[0, s, h, k] * key[0, t, h // 3, k], k), "y"
        ),
    )


def sliced() -> tvm.IRModule:
    """Operands and a residual that begin inside their tensors."""
    a, b = te.placeholder((6, 8), name="a"), te.placeholder((9, 6), name="b")
    rest = te.placeholder((7, 12), name="rest")
    k = te.reduce_axis((0, 8), name="k")
    y = te.compute((4, 6), lambda i, j: te.sum(a[i + 2, k] * b[k + 1, j], k), "y")
    return _module(a, b, rest, te.compute((4, 6), lambda i, j: y[i, j] + rest[i + 3, j + 5], "z"))
