"""Matrix multiplication, plain or batched, with epilogues.

Notation: C[m, n] = Σ_k A[m, k] · B[k, n].
"""

from __future__ import annotations

from typing import Any

from tvm import te

from felix import errors, task
from felix.workloads import common, dtypes, pointwise


@common.operator
def gemm(
    m: common.Extent,
    n: common.Extent,
    k: common.Extent,
    *,
    batch: common.Extent | None = None,
    transpose_a: bool = False,
    transpose_b: bool = False,
    epilogue: common.Epilogue = (),
    dtype: dtypes.Factor = "float32",
    out_dtype: dtypes.Output | None = None,
    allow_tf32: bool = False,
    target: common.TargetLike = "llvm",
) -> task.Task:
    """Matrix product A[m, k] · B[k, n], then the epilogue stages in order.

    Args:
        m, n: rows and columns of the result.
        k: length of the inner product.
        batch: number of independent products; every tensor gets a leading axis of this extent.
        transpose_a: A is stored [k, m].
        transpose_b: B is stored [n, k].
        epilogue: stages of bias ([n]), relu, gelu (erf), residual (tensor of the result's shape),
            scale ([n]) and scalar_scale ([1]), both float32, which make floats of int8's sums.
        dtype: type of A and B.
        out_dtype: type of the result, bias and residual. Left out: dtype; int32 for int8, bfloat16
            for float8 and for int8 with a scale. Sums are float32 (int32 for int8, float64 for
            float64); before a scale bias and residual of int8's sums are int32.
        allow_tf32: tensor cores may drop 13 bits of the mantissa of float32 factors; the result
            may then be off by 0.4 % of its root mean square. For dtype=float32 alone.
    """
    if allow_tf32 and dtype != "float32":
        raise errors.WorkloadError(
            f"gemm: allow_tf32 is for dtype=float32, got {dtype}: leave it out"
        )
    out = dtypes.output("gemm", dtype, out_dtype, epilogue)
    lead = () if batch is None else (batch,)
    a = common.placeholder("A", lead + ((k, m) if transpose_a else (m, k)), dtype)
    b = common.placeholder("B", lead + ((n, k) if transpose_b else (k, n)), dtype)
    rk = common.reduce_axis("k", k)

    def product(*index: Any) -> Any:
        *outer, i, j = index
        x = a[(*outer, rk, i) if transpose_a else (*outer, i, rk)]
        y = b[(*outer, j, rk) if transpose_b else (*outer, rk, j)]
        return te.sum(common.wide(x) * common.wide(y), axis=rk)

    result = common.compute("matmul", (*lead, m, n), product)
    extra, output = pointwise.add(result, epilogue, len(lead) + 1, out)
    layout = ("t" if transpose_a else "n") + ("t" if transpose_b else "n")
    tags = ["" if layout == "nn" else layout, *epilogue, dtypes.tag(dtype, out)]
    name = common.name_of("gemm", (*lead, m, n, k), *tags, "tf32" if allow_tf32 else "")
    made = common.finish(name, [a, b, *extra, output], target)
    return made.allowing_tf32() if allow_tf32 else made
