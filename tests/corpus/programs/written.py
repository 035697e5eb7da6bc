"""Programs written by hand: repeated names, large extents, forms that no front end makes."""

from __future__ import annotations

from typing import Any

from tvm import s_tir, te, tirx, topi

from tests.corpus.programs.build import Builder, apply, tensor


def programs() -> dict[str, Builder]:
    """Name -> builder."""
    return {
        "all_one_name": _all_one_name,
        "inputs_of_one_name": _inputs_of_one_name,
        "named_as_caches": _named_as_caches,
        "named_as_rfactor": _named_as_rfactor,
        "compute_named_root": _compute_named_root,
        "iterators_of_one_name": _iterators_of_one_name,
        "two_outputs": _two_outputs,
        "output_is_read": _output_is_read,
        "input_twice": _input_twice,
        "unused_input": _unused_input,
        "large_extents": apply(lambda x: topi.nn.relu(x), (65536, 65536)),
        "large_vector": apply(topi.nn.relu, (2**24,)),
        "divided_by_data": apply(
            lambda x, y: topi.floor_divide(x, y), (40, 50), (40, 50), dtype="int32"
        ),
        "constant_index": _constant_index,
        "negative_stride": _negative_stride,
        "diagonal": _diagonal,
        "nested_conditions": _nested_conditions,
        "long_chain": _long_chain,
        "diamond": _diamond,
        "two_products_of_one_input": _two_products,
        "blockized_product": _blockized_product,
        "uint8_to_float": apply(
            lambda x: topi.divide(topi.cast(x, "float32"), 255.0), (33, 47), dtype="uint8"
        ),
    }


def _all_one_name() -> list[te.Tensor]:
    """Every tensor is called t."""
    x = tensor(24, 40, name="t")
    k = te.reduce_axis((0, 40), name="t")
    a = te.compute((24, 40), lambda i, j: x[i, j] * 2.0, name="t")
    b = te.compute((24, 40), lambda i, j: te.exp(a[i, j]) + x[i, j], name="t")
    c = te.compute((24,), lambda i: te.sum(b[i, k], axis=k), name="t")
    d = te.compute((24, 40), lambda i, j: b[i, j] / c[i], name="t")
    return [x, d]


def _inputs_of_one_name() -> list[te.Tensor]:
    x, y = tensor(32, 48, name="x"), tensor(40, 48, name="x")
    return [x, y, topi.nn.dense(x, y)]


def _named_as_caches() -> list[te.Tensor]:
    """Names that TVM gives to the buffers of its cache instructions."""
    a, b = tensor(32, 48, name="C"), tensor(48, 40, name="C_shared")
    k = te.reduce_axis((0, 48), name="k")
    p = te.compute((32, 48), lambda i, j: a[i, j] + 1.0, name="C_local")
    c = te.compute((32, 40), lambda i, j: te.sum(p[i, k] * b[k, j], axis=k), name="C_global")
    return [a, b, c]


def _named_as_rfactor() -> list[te.Tensor]:
    x = tensor(6, 2000, name="B_rf")
    k = te.reduce_axis((0, 2000), name="k_1")
    first = te.compute((6, 2000), lambda vk_0, vk_1: x[vk_0, vk_1] * 2.0, name="B.rf")
    return [x, te.compute((6,), lambda vk_1: te.sum(first[vk_1, k], axis=k), name="B")]


def _compute_named_root() -> list[te.Tensor]:
    x = tensor(24, 40)
    first = te.compute((24, 40), lambda i, j: x[i, j] + 1.0, name="root")
    return [x, te.compute((24, 40), lambda i, j: first[i, j] * 2.0, name="root_1")]


def _iterators_of_one_name() -> list[te.Tensor]:
    x, y = tensor(24, 40), tensor(40, 32, name="y")
    k = te.reduce_axis((0, 40), name="i")
    return [x, y, te.compute((24, 32), lambda i, j: te.sum(x[i, k] * y[k, j], axis=k), name="i")]


def _two_outputs() -> list[te.Tensor]:
    x = tensor(24, 40)
    return [x, topi.exp(x), topi.sum(x, axis=1)]


def _output_is_read() -> list[te.Tensor]:
    x = tensor(24, 40)
    first = topi.exp(x)
    return [x, first, topi.sum(first, axis=1)]


def _input_twice() -> list[te.Tensor]:
    x = tensor(24, 40)
    return [x, x, topi.add(x, x)]


def _unused_input() -> list[te.Tensor]:
    x = tensor(24, 40)
    return [x, tensor(7, name="unused"), topi.exp(x)]


def _constant_index() -> list[te.Tensor]:
    x = tensor(24, 40)
    return [x, te.compute((24, 40), lambda i, j: x[i, j] - x[i, 0], name="shifted")]


def _negative_stride() -> list[te.Tensor]:
    x = tensor(40)
    return [x, te.compute((20,), lambda i: x[39 - 2 * i], name="back")]


def _diagonal() -> list[te.Tensor]:
    x = tensor(40, 40)
    return [x, te.compute((40,), lambda i: x[i, i] * 2.0, name="diagonal")]


def _nested_conditions() -> list[te.Tensor]:
    x = tensor(24, 40)

    def value(i: Any, j: Any) -> Any:
        inner = tirx.if_then_else(j < 20, x[i, j], x[i, j] * 2.0)
        return tirx.if_then_else(tirx.all(i > 2, i < 20), inner, tirx.const(0.0, "float32"))

    return [x, te.compute((24, 40), value, name="chosen")]


def _long_chain() -> list[te.Tensor]:
    x = value = tensor(24, 40)
    for _ in range(12):
        value = topi.nn.relu(topi.add(value, x))
    return [x, value]


def _diamond() -> list[te.Tensor]:
    x = tensor(24, 40)
    first = topi.exp(x)
    return [x, topi.add(topi.sum(first, axis=1), topi.max(first, axis=1))]


def _two_products() -> list[te.Tensor]:
    x, y, z = tensor(24, 40), tensor(32, 40, name="y"), tensor(32, 40, name="z")
    return [x, y, z, topi.nn.dense(x, y), topi.nn.dense(x, z)]


def _blockized_product() -> tirx.PrimFunc:
    x, y = tensor(16, 32), tensor(24, 32, name="y")
    sch = s_tir.Schedule(te.create_prim_func([x, y, topi.nn.dense(x, y)]))
    loops = sch.get_loops(sch.get_sblock("T_matmul_NT"))
    outer, inner = zip(*(sch.split(loop, [None, 8]) for loop in loops), strict=True)
    sch.reorder(*outer, *inner)
    sch.blockize(inner[0])
    return sch.mod["main"]
