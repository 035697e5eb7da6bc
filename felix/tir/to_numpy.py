"""A numpy program that computes what a TIR program computes, where that is plain to see.

A reference that shares nothing with TVM's code generation: `source` writes Python text with one
numpy statement a block, which the artifact contains and a person can read, e.g.

    matmul = np.einsum("ik,kj->ij", A, B)
    relu = np.maximum(at(matmul, "ij", "ij"), np.float32(0))

Understood: blocks that store at plain iterators (or constant 0) and visit each of their points
once, operands loaded at plain iterators or constants, arithmetic, maxima and minima, common math
functions, and reductions by sum, maximum or minimum, from any start. A sum of a product of loads
becomes an einsum (BLAS), so every GEMM with its epilogue is covered, and softmax, normalisations,
reductions and elementwise chains. An argument may be changed in place, each element from its own
old value; `inputs` stay as they are.
Narrow types are loaded, converted and stored; sums of products of int8 are computed in float64,
where they are exact and BLAS is fast.
Not understood (None): padding, strided windows, gathers, tuple reductions, arithmetic in types
narrower than float32 and int32.

Such a block stores one element at each point of its domain, visits each point once, in loops of
its own, and its result does not depend on the order of points: of the buffer that it stores to, it
loads the element that it stores and no other. That may be an argument's old value, which the
program changes in place.

Notation: a block's iterators are single letters; `at(x, axes, order)` transposes x from `axes`
to `order` and broadcasts over the letters it lacks.
"""

from __future__ import annotations

import math
import string
from collections.abc import Sequence
from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, tirx

from felix.tir import grammar

_PRELUDE = '''"""The program in numpy, written from its TIR; see `compute`."""

from __future__ import annotations

import math

import numpy as np
{imports}

def at(x, axes, order):
    """Transpose from `axes` to `order`; letters of `order` that x lacks are broadcast."""
    x = np.transpose(x, [axes.index(letter) for letter in order if letter in axes])
    return x[tuple(slice(None) if letter in axes else None for letter in order)]


def erf(x):
    """The error function, element by element."""
    return np.vectorize(math.erf, otypes=[x.dtype])(x)


'''

_BINARY = {"Add": "({} + {})", "Sub": "({} - {})", "Mul": "({} * {})", "Div": "({} / {})"}
_BINARY |= {"Max": "np.maximum({}, {})", "Min": "np.minimum({}, {})"}
_CALLS = {
    **{name: f"np.{name}({{}})" for name in ("exp", "log", "sqrt", "tanh", "sin", "cos", "floor")},
    **{"erf": "erf({})", "rsqrt": "(1 / np.sqrt({}))", "fabs": "np.abs({})"},
    **{"sigmoid": "(1 / (1 + np.exp(-{})))", "pow": "np.power({}, {})", "ceil": "np.ceil({})"},
}
#: Types of arithmetic, and those that are loaded and stored as well.
_WIDE = ("float32", "float64", "int32")
_NATIVE = (*_WIDE, "float16", "int8")
_FOREIGN = ("bfloat16", *grammar.STORAGE_DTYPES)  #: not of numpy itself
_DTYPES = (*_NATIVE, *_FOREIGN)
_INTEGER_KINDS = ("Add", "Sub", "Mul", "Max", "Min")
_REDUCERS = {"Add": "sum", "Max": "max", "Min": "min"}


class _Unknown(Exception):
    """The program holds something that is not plain."""


def source(mod: tvm.IRModule) -> str | None:
    """Python text with `compute(inputs: dict) -> dict` of outputs, or None."""
    func = mod["main"]
    blocks = of(func)
    if blocks is None:
        return None
    names = _Names()
    params = {names.of(param): str(param.name) for param in func.params}
    try:
        assigned, made = _assignments(blocks, set(params), names)
    except _Unknown:
        return None
    outputs = ", ".join(f"{key!r}: {name}" for name, key in params.items() if name in assigned)
    given = [f"{name} = inputs[{key!r}]" for name, key in params.items() if name not in made]
    lines = [*given, *(f"{name} = {text}" for name, text in assigned.items())]
    text = "".join(f"    {line}\n" for line in lines)
    head = 'def compute(inputs):\n    """Outputs by name, from the inputs by name."""\n'
    imports = "import ml_dtypes\n" if "ml_dtypes." in text else ""
    return f"{_PRELUDE.replace('{imports}', imports)}{head}{text}    return {{{outputs}}}\n"


def _assignments(
    blocks: Sequence[Any], params: set[str], names: _Names
) -> tuple[dict[str, str], set[str]]:
    """Expressions by buffer, in program order, and the buffers that are written before read."""
    assigned: dict[str, str] = {}
    read: set[str] = set()
    made: set[str] = set()
    for block in blocks:
        read |= {names.of(region.source) for region in block.reads}
        name, text = _statement(block, names)
        if name in assigned or not read <= params | assigned.keys():
            raise _Unknown  # a second assignment, or memory that nothing has written
        if name not in read:
            made.add(name)
        assigned[name] = text
    return assigned, made


class _Names:
    """Python names of TVM buffers; equal names of different buffers get numbers."""

    def __init__(self) -> None:
        self._taken: dict[Any, str] = {}

    def of(self, buffer: Any) -> str:
        if buffer in self._taken:
            return self._taken[buffer]
        base = "".join(c if c.isalnum() else "_" for c in str(buffer.name))
        base = base if base.isidentifier() else f"v_{base}"
        if base in ("np", "at", "erf", "math", "inputs", "ml_dtypes"):
            base += "_"
        names = (base, *(f"{base}_{i}" for i in range(999)))
        self._taken[buffer] = next(name for name in names if name not in self._taken.values())
        return self._taken[buffer]


def _statement(block: Any, names: _Names) -> tuple[str, str]:
    """Name and numpy expression of the buffer a block stores."""
    store = block.body
    if str(store.buffer.dtype) not in _DTYPES:
        raise _Unknown
    if len(block.iter_vars) > len(string.ascii_letters):
        raise _Unknown
    letters = {v.var: string.ascii_letters[i] for i, v in enumerate(block.iter_vars)}
    reduced = [letters[v.var] for v in block.iter_vars if v.iter_type == grammar.REDUCE]
    axes, indexer = _axes(store.indices, letters)
    spatial = [letter for letter in letters.values() if letter not in reduced]
    if sorted(axes) != sorted(spatial) or len(set(axes)) != len(axes):
        raise _Unknown
    order = axes + "".join(reduced)
    if not reduced:
        text = _expression(store.value, letters, order, names)
    else:
        text = _reduction(block, letters, axes, "".join(reduced), names)
    shape = tuple(int(extent) for extent in store.buffer.shape)
    extents = {letters[v.var]: int(v.dom.extent) for v in block.iter_vars}
    plain = [extents[axis] for axis in axes]
    if [extent for extent, index in zip(shape, indexer, strict=True) if index is None] != plain:
        raise _Unknown  # part of the buffer is not written here
    if any(shape[i] != 1 for i, index in enumerate(indexer) if index is not None):
        raise _Unknown
    return names.of(store.buffer), f"np.broadcast_to({text}, {tuple(plain)}).reshape({shape})"


def _reduction(block: Any, letters: Any, axes: str, reduced: str, names: _Names) -> str:
    value = block.body.value
    kind = type(value).__name__
    if kind not in _REDUCERS or grammar.dtype(value) not in _WIDE:
        raise _Unknown
    text = _terms(kind, value.b, letters, axes + reduced, reduced, names)
    initial = start(block)
    if initial is None:
        return text
    return _BINARY[kind].format(_expression(initial, letters, axes, names), text)


def _terms(kind: str, term: Any, letters: Any, order: str, reduced: str, names: _Names) -> str:
    """The sum, maximum or minimum of terms over the last axes of `order`, which are `reduced`."""
    axes = order.removesuffix(reduced)
    factors = _factors(term)
    if kind == "Add" and len(factors) > 1:
        is_integer = grammar.dtype(term) == "int32"
        loads = [_factor(factor, letters, names, is_integer) for factor in factors]
        spec = ",".join(load[1] for load in loads) + "->" + axes
        operands = ", ".join(load[0] for load in loads)
        text = f'np.einsum("{spec}", {operands}, optimize=True)'
        return f"{text}.astype(np.int32)" if is_integer else text
    inner = _expression(term, letters, order, names)
    last = tuple(range(len(axes), len(order)))
    return f"{inner}.{_REDUCERS[kind]}(axis={last})"


def _factors(term: Any) -> list[Any]:
    """The loads of a product of loads, as they are or cast; else the term alone."""
    if type(term).__name__ != "Mul":
        return [term]
    factors = _factors(term.a) + _factors(term.b)
    return factors if all(map(_is_factor, factors)) else [term]


def _is_factor(expr: Any) -> bool:
    """Whether an expression is a load of a wide type, or a cast one."""
    kind = type(expr).__name__
    if kind == "Cast" and grammar.dtype(expr) in _WIDE:
        return type(expr.value).__name__ == "TensorLoad"
    return kind == "TensorLoad" and grammar.dtype(expr) in _WIDE


def _factor(factor: Any, letters: Any, names: _Names, is_integer: bool) -> tuple[str, str]:
    """Text and axes of a factor of a sum of products, in float64 if they are integers."""
    is_cast = type(factor).__name__ == "Cast"
    text, axes = _load(factor.value if is_cast else factor, letters, names)
    dtype = "float64" if is_integer else grammar.dtype(factor)
    return f"{text}.astype({_numpy_dtype(dtype)})" if is_cast or is_integer else text, axes


def _numpy_dtype(dtype: str) -> str:
    """The name of a type in the text."""
    if dtype not in _DTYPES:
        raise _Unknown
    return f"ml_dtypes.{dtype}" if dtype in _FOREIGN else f"np.{dtype}"


def _expression(expr: Any, letters: Any, order: str, names: _Names) -> str:
    kind = type(expr).__name__
    is_integer = not grammar.is_float(grammar.dtype(expr))
    if kind not in ("TensorLoad", "Cast") and grammar.dtype(expr) not in _WIDE:
        raise _Unknown
    if kind == "Cast":
        inner = _expression(expr.value, letters, order, names)
        return f"{inner}.astype({_numpy_dtype(grammar.dtype(expr))})"
    if kind in _BINARY and (kind in _INTEGER_KINDS or not is_integer):
        sides = [_expression(side, letters, order, names) for side in (expr.a, expr.b)]
        return _BINARY[kind].format(*sides)
    if kind == "FloatImm":
        value = float(expr.value)
        return f"np.{expr.ty.dtype}({repr(value) if math.isfinite(value) else repr(str(value))})"
    if kind == "IntImm":
        return f"np.{expr.ty.dtype}({int(expr.value)})"
    if kind == "TensorLoad":
        text, axes = _load(expr, letters, names)
        if len(set(axes)) != len(axes):
            raise _Unknown  # a diagonal
        return f'at({text}, "{axes}", "{order}")'
    if kind == "Call":
        name = str(expr.op.name).removeprefix("tirx.")
        if name in _CALLS:
            arguments = [_expression(arg, letters, order, names) for arg in expr.args]
            return _CALLS[name].format(*arguments)
    raise _Unknown


def _load(load: Any, letters: Any, names: _Names) -> tuple[str, str]:
    """Text of a loaded tensor and the letters of its axes; constant indices are taken out."""
    if str(load.source.dtype) not in _DTYPES:
        raise _Unknown
    axes, indexer = _axes(load.indices, letters)
    text = names.of(load.source)
    if any(index is not None for index in indexer):
        inside = ", ".join(":" if index is None else str(index) for index in indexer)
        text = f"{text}[{inside}]"
    return text, axes


def _axes(indices: Any, letters: Any) -> tuple[str, list[int | None]]:
    """Letters of the plain indices; the value of each constant index, None for a plain one."""
    axes = ""
    indexer: list[int | None] = []
    for index in indices:
        if type(index).__name__ == "IntImm":
            indexer.append(int(index.value))
            continue
        if index not in letters:
            raise _Unknown
        axes += letters[index]
        indexer.append(None)
    return axes, indexer


def of(func: tirx.PrimFunc) -> list[Any] | None:
    """The blocks that compute, in program order; None if one is not plain."""
    realizes = _realizes(func.body, ())
    if realizes is None or not all(_is_plain(realize.block) for realize in realizes):
        return None
    return [realize.block for realize in realizes]


def start(block: Any) -> Any | None:
    """What a plain reduction begins with, if its terms alone do not give the same."""
    update = block.body.value
    if block.init is None:
        return update.a
    value, dtype = block.init.value, grammar.dtype(block.init.value)
    if type(value).__name__ not in ("FloatImm", "IntImm"):
        return value
    neutral = {"Add": 0, "Max": tirx.min_value(dtype).value, "Min": tirx.max_value(dtype).value}
    return None if value.value == neutral.get(type(update).__name__) else value


def _realizes(stmt: Any, loops: tuple[Any, ...]) -> list[Any] | None:
    """The blocks that compute, as they are realised; None where one is not visited plainly."""
    if isinstance(stmt, tirx.For):
        return _realizes(stmt.body, (*loops, stmt))
    if isinstance(stmt, tirx.SeqStmt) and not loops:
        parts = [_realizes(part, ()) for part in stmt.seq]
        return None if None in parts else [each for part in parts for each in part or ()]
    if not isinstance(stmt, s_tir.SBlockRealize) or not _visits_each_point_once(stmt, loops):
        return None
    return [stmt] if len(stmt.block.iter_vars) else _realizes(stmt.block.body, ())


def _visits_each_point_once(realize: Any, loops: tuple[Any, ...]) -> bool:
    """Whether each loop is over the domain of one iterator, and nothing is skipped."""
    bindings = zip(realize.block.iter_vars, realize.iter_values, strict=True)
    bound = [(value, int(v.dom.extent)) for v, value in bindings if int(v.dom.extent) > 1]
    moving = [loop for loop in loops if int(loop.extent) > 1]
    is_bound = [
        any(loop.loop_var.same_as(value) and int(loop.extent) == extent for value, extent in bound)
        for loop in moving
    ]
    is_always = grammar.is_constant(realize.predicate, 1)
    return is_always and all(is_bound) and len(bound) == len(moving)


def _is_plain(block: Any) -> bool:
    """Whether a block stores one element a point, by no other element of the same buffer."""
    store = block.body
    stores = [store] if block.init is None else [store, block.init]
    if not all(isinstance(each, tirx.BufferStore) for each in stores):
        return False
    loads = grammar.nodes(store.value, tvm.ir.TensorLoad)
    own = [load for load in loads if load.source.same_as(store.buffer)]
    is_reduction = any(v.iter_type == grammar.REDUCE for v in block.iter_vars)
    if is_reduction and not _accumulates(store, own):
        return False
    return all(_same_element(each, store) for each in (*own, *stores))


def _same_element(access: Any, store: Any) -> bool:
    """Whether a load or a store is of the element that `store` stores to."""
    buffer = access.source if isinstance(access, tvm.ir.TensorLoad) else access.buffer
    same_indices = tvm_ffi.structural_equal(access.indices, store.indices)
    return bool(same_indices) and bool(buffer.same_as(store.buffer))


def _accumulates(store: Any, own: list[Any]) -> bool:
    """Whether a reduction loads what it has so far once: as the first operand of its value."""
    first = getattr(store.value, "a", None)
    return len(own) == 1 and isinstance(first, tvm.ir.TensorLoad) and first.same_as(own[0])
