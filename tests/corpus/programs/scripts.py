"""TIR written by hand: names that repeat, blocks of every form, int32 loops, odd extents."""

from __future__ import annotations

import functools

from tests.corpus.programs.build import Builder
from tests.support import tir_programs

_GRID = (
    "for i, j in T.grid({}, {}):\n    with T.sblock('{}'):\n        "
    "v, w = T.axis.remap('SS', [i, j])\n        "
)


def programs() -> dict[str, Builder]:
    """Name -> builder."""
    texts = _maps() | _sums() | _beginnings() | _tuples() | _chains() | _data()
    texts |= _declarations() | _others()
    return {
        f"tir_{name}": lambda body=body, parameters=parameters: tir_programs.function(
            body, *map(_parameter, parameters)
        )
        for name, (body, parameters) in texts.items()
    }


#: Body, and parameters as "name dtype extents", or with options of T.Buffer after a comma.
_Text = tuple[str, tuple[str, ...]]


def _parameter(text: str) -> str:
    kind, _, options = text.partition(",")
    name, dtype, *extents = kind.split()
    return f'{name}: T.Buffer(({", ".join(extents)},), "{dtype}", {options})'


def _map(value: str, rows: int = 33, columns: int = 47, block: str = "t") -> str:
    return _GRID.format(rows, columns, block) + f"B[v, w] = {value}\n"


_A, _B = "A float32 33 47", "B float32 33 47"


def _maps() -> dict[str, _Text]:
    values = {
        "copy": "A[v, w]",
        "shift_guarded": "T.if_then_else(w >= 1, A[v, w - 1], T.float32(0))",
        "both_sides": "T.if_then_else(w < 46, A[v, w + 1], A[v, 0]) - A[32 - v, w]",
        "select": "T.Select(v < 10, A[v, w], T.float32(1)) * A[v, 46 - w]",
        "iterators_as_values": 'A[v, w] + T.Cast("float32", v * 47 + w)',
        "masked_index": "A[T.bitwise_and(v, 15), T.shift_right(w, 1)]",
        "remainders": "A[(v * 5 + 3) % 33, w // 2]",
        "quotients": "A[T.truncdiv(v, 2), T.truncmod(w, 5) * 4]",
        "min_max": "A[T.max(v - 1, 0), T.min(w + 1, 46)]",
        "math": "T.exp(T.tanh(A[v, w])) / (T.sqrt(T.abs(A[v, w])) + T.float32(1))",
    }
    result: dict[str, _Text] = {name: (_map(value), (_A, _B)) for name, value in values.items()}
    result["let"] = (_bound("n: T.let[T.float32] = A[v, w] * T.float32(2)", "n * n + n"), (_A, _B))
    result["let_index"] = (_bound("n: T.let[T.int32] = T.max(w - 1, 0)", "A[v, n]"), (_A, _B))
    for dtype in ("int8", "int32", "int64", "bool", "float16", "bfloat16", "uint8"):
        parameters = (f"A {dtype} 33 47", f"B {dtype} 33 47")
        result[f"copy_{dtype}"] = (_map("A[v, 46 - w]"), parameters)
    return result


def _bound(bind: str, value: str) -> str:
    return _GRID.format(33, 47, "t") + f"{bind}\n        B[v, w] = {value}\n"


def _sum(
    name: str,
    rows: int,
    length: int,
    value: str,
    start: str = "T.float32(0)",
    combined: str = "{} + {}",
    source: str = "A",
    target: str = "B",
) -> str:
    element = f"{target}[v]"
    return f"""
for i, k in T.grid({rows}, {length}):
    with T.sblock("{name}"):
        v, w = T.axis.remap("SR", [i, k])
        with T.init():
            {element} = {start}
        {element} = {combined.format(element, value.replace("SOURCE", source))}
"""


def _sums() -> dict[str, _Text]:
    return {
        "sum": (_sum("s", 33, 47, "A[v, w]"), (_A, "B float32 33")),
        "sum_prime": (_sum("s", 3, 10007, "A[v, w]"), ("A float32 3 10007", "B float32 3")),
        "sum_int32": (_sum("s", 33, 47, "A[v, w]", "0"), ("A int32 33 47", "B int32 33")),
        "sum_squares": (_sum("s", 33, 47, "A[v, w] * A[v, w]"), (_A, "B float32 33")),
        "max": (
            _sum("s", 33, 47, "A[v, w]", "T.float32(-3e38)", "T.max({}, {})"),
            (_A, "B float32 33"),
        ),
        "windows": (_sum("s", 20, 5, "A[v * 2 + w]"), ("A float32 43", "B float32 20")),
        "guarded_windows": (
            _sum("s", 20, 5, "T.if_then_else(v * 2 + w >= 2, A[v * 2 + w - 2], T.float32(0))"),
            ("A float32 43", "B float32 20"),
        ),
    }


def _product(
    rows: int, columns: int, depth: int, dtype: str = "float32", start: str | None = None
) -> str:
    first = f"C[v, w] = T.{dtype}(0)" if start is None else start
    return f"""
for i, j, k in T.grid({rows}, {columns}, {depth}):
    with T.sblock("C"):
        v, w, r = T.axis.remap("SSR", [i, j, k])
        with T.init():
            {first}
        C[v, w] = C[v, w] + A[v, r] * B[r, w]
"""


def _beginnings() -> dict[str, _Text]:
    """Sums that begin with something else than 0."""
    operands = ("A float32 67 127", "B float32 127 67")
    product = functools.partial(_product, 67, 67, 127)
    branches = "if v < 5:\n                C[v, w] = T.float32(0)\n"
    branches += "            else:\n                C[v, w] = T.float32(1)"
    behind = (
        "C = T.sblock_alloc_buffer((67, 67))\n"
        + product()
        + """
for i, j, k in T.grid(67, 67, 2):
    with T.sblock("last"):
        v, w, u = T.axis.remap("SSR", [i, j, k])
        D[v, w] = C[v, w] * T.Cast("float32", u)
"""
    )
    return {
        "begins_with_branches": (product(start=branches), (*operands, "C float32 67 67")),
        "begins_with_data": (
            product(start="C[v, w] = D[w]"),
            (*operands, "D float32 67", "C float32 67 67"),
        ),
        "begins_with_one": (
            product(start="C[v, w] = T.float32(1)"),
            (*operands, "C float32 67 67"),
        ),
        "without_beginning": (behind, (*operands, "D float32 67 67")),
    }


def _tuples() -> dict[str, _Text]:
    """Several values reduced in one block."""
    head = """
for i, k in T.grid(13, 89):
    with T.sblock("pair"):
        v, w = T.axis.remap("SR", [i, k])
        with T.init():
            B[v] = FIRST
            C[v] = SECOND
"""
    sums = """
        b: T.let[T.float32] = B[v] + A[v, w]
        c: T.let[T.float32] = C[v] + A[v, w] * A[v, w]
        B[v] = b
        C[v] = c
"""
    best = """
        b: T.let[T.int32] = T.Select(C[v] >= A[v, w], B[v], w)
        c: T.let[T.float32] = T.Select(C[v] >= A[v, w], C[v], A[v, w])
        B[v] = b
        C[v] = c
"""

    counts = """
        b: T.let[T.int32] = B[v] + A[v, w]
        c: T.let[T.int32] = C[v] + T.int32(1)
        B[v] = b
        C[v] = c
"""

    def text(body: str, first: str, second: str) -> str:
        start = head.replace("FIRST", first).replace("SECOND", second).rstrip()
        return start + body

    return {
        "sum_and_squares": (
            text(sums, "T.float32(0)", "T.float32(0)"),
            ("A float32 13 89", "B float32 13", "C float32 13"),
        ),
        "sum_and_count": (text(counts, "0", "0"), ("A int32 13 89", "B int32 13", "C int32 13")),
        "two_sums": (
            text(sums.replace("A[v, w] * A[v, w]", "A[v, w]"), "T.float32(0)", "T.float32(1)"),
            ("A float32 13 89", "B float32 13", "C float32 13"),
        ),
        "best_and_where": (
            text(best, "-1", "T.float32(-3e38)"),
            ("A float32 13 89", "B int32 13", "C float32 13"),
        ),
        "two_stores": (
            _GRID.format(33, 47, "t")
            + "B[v, w] = A[v, w] * T.float32(2)\n        "
            + "C[v, w] = A[v, w] + T.float32(1)\n",
            (_A, _B, "C float32 33 47"),
        ),
    }


def _chains() -> dict[str, _Text]:
    """Several blocks; buffers and iterators of one name."""
    relu = "T.max({}, T.float32(0))"
    twice = "t = T.sblock_alloc_buffer((33, 47))\n" + _map("A[v, w] * T.float32(2)", block="x")
    twice = twice.replace("B[v, w]", "t[v, w]") + "u = T.sblock_alloc_buffer((33, 47))\n"
    twice += _map("t[v, w] + A[v, w]", block="x").replace("B[v, w]", "u[v, w]")
    twice += _map(relu.format("u[v, w]"), block="x")
    product = "C = T.sblock_alloc_buffer((17, 23))\n" + _product(17, 23, 31)
    softmax = (
        "m = T.sblock_alloc_buffer((13,))\ns = T.sblock_alloc_buffer((13,))\n"
        + _sum("m", 13, 89, "A[v, w]", "T.float32(-3e38)", "T.max({}, {})", target="m")
        + _sum("m", 13, 89, "T.exp(A[v, w] - m[v])", target="s")
        + _map("T.exp(A[v, w] - m[v]) / s[v]", 13, 89)
    )
    return {
        "blocks_of_one_name": (twice, (_A, _B)),
        "product": (
            _product(17, 23, 31),
            ("A float32 17 31", "B float32 31 23", "C float32 17 23"),
        ),
        "product_float16": (
            _product(16, 24, 32, "float16"),
            ("A float16 16 32", "B float16 32 24", "C float16 16 24"),
        ),
        "product_int32": (
            _product(16, 24, 32, "int32"),
            ("A int32 16 32", "B int32 32 24", "C int32 16 24"),
        ),
        "product_relu": (
            product + _map(relu.format("C[v, w]"), 17, 23).replace("B[v, w] =", "D[v, w] ="),
            ("A float32 17 31", "B float32 31 23", "D float32 17 23"),
        ),
        "softmax": (softmax, ("A float32 13 89", "B float32 13 89")),
    }


def _data() -> dict[str, _Text]:
    rows = "A[T.min(T.max(I[v], 0), 32), w]"
    return {
        "rows_of_data": (_map(rows), (_A, "I int32 33", _B)),
        "rows_of_bytes": (
            _map(rows.replace("I[v]", 'T.Cast("int32", I[v])')),
            (_A, "I uint8 33", _B),
        ),
        "elements_of_data": (_map("A[v, I[v, w] % 47]"), (_A, "I int32 33 47", _B)),
        "data_twice": (_map("A[I[J[w] % 33] % 33, w]"), (_A, "I int32 33", "J int32 47", _B)),
        "rows_summed": (
            _sum("s", 9, 21, "A[T.min(T.max(I[v, w], 0), 32), 3]"),
            (_A, "I int32 9 21", "B float32 9"),
        ),
        "unclamped": (_map("A[I[v], w]"), (_A, "I int32 33", _B)),
        "scattered": (
            _map("A[v, w]").replace("B[v, w] =", "B[T.min(T.max(I[v], 0), 32), w] ="),
            (_A, "I int32 33", _B),
        ),
        "shifts_by_data": (
            _map("T.shift_left(A[v, w], I[v] % 32)"),
            ("A int32 33 47", "I int32 33", "B int32 33 47"),
        ),
    }


def _declarations() -> dict[str, _Text]:
    """Parameters with an element offset or strides."""
    product = _product(17, 23, 31)
    others = ("B float32 31 23", "C float32 17 23")
    return {
        "variable_offset": (product, ("A float32 17 31, offset_factor=4", *others)),
        "variable_offsets": (
            product,
            tuple(f"{each}, offset_factor=1" for each in ("A float32 17 31", *others)),
        ),
        "strides_of_its_shape": (product, ("A float32 17 31, strides=(31, 1)", *others)),
        "constant_offset": (product, ("A float32 17 31, elem_offset=8", *others)),
        "strided": (product, ("A float32 17 31, strides=(32, 1)", *others)),
    }


def _others() -> dict[str, _Text]:
    return {
        "predicate": ("""
for i in range(40):
    with T.sblock("t"):
        v = T.axis.spatial(33, i)
        T.where(i < 33)
        B[v] = A[v]
""", ("A float32 33", "B float32 33")),
        "block_in_a_block": ("""
for i in range(4):
    with T.sblock("outer"):
        v = T.axis.spatial(4, i)
        for j in range(4):
            with T.sblock("inner"):
                w = T.axis.spatial(16, v * 4 + j)
                B[w] = A[w]
""", ("A float32 16", "B float32 16")),
        "branches": (_GRID.format(33, 47, "t") + "if w < 5:\n            B[v, w] = A[v, w]\n"
                     "        else:\n            B[v, w] = A[v, 0]\n", (_A, _B)),
        "two_halves": ("""
for i in range(20):
    with T.sblock("a"):
        v = T.axis.spatial(20, i)
        B[v] = A[v] * T.float32(2)
for i in range(13):
    with T.sblock("b"):
        v = T.axis.spatial(13, i)
        B[v + 20] = A[v + 20] - T.float32(2)
""", ("A float32 33", "B float32 33")),
        "float8": (_map("A[v, w]"), ("A float8_e4m3fn 33 47", "B float8_e4m3fn 33 47")),
        "int4": (_map("A[v, w]"), ("A int4 33 47", "B int4 33 47")),
        "wide": (_map("A[v, w] + T.float32(1)", 65536, 65536),
                 ("A float32 65536 65536", "B float32 65536 65536")),
        "fused_binding": ("""
for f in range(33 * 47):
    with T.sblock("t"):
        v = T.axis.spatial(33, f // 47)
        w = T.axis.spatial(47, f % 47)
        B[v, w] = A[v, w]
""", (_A, _B)),
    }  # fmt: skip
