"""From a TVM PrimFunc to the symbolic program's form, before any schedule instruction.

Reads a PrimFunc whose root block holds loop nests over blocks of one store, or of the stores of a
tuple reduction, as `te` and the front ends produce. Nothing is simplified: the value tree keeps
the operations TVM will execute, so that counting nodes counts operations.
"""

from __future__ import annotations

from typing import Any

import sympy
import tvm
from tvm import tirx
from tvm.ir.expr import Call, TensorLoad
from tvm.s_tir import stmt as s_stmt

from felix.errors import UnsupportedSchedule
from felix.symbolic import expr, index_expr, ir

#: TIR node -> operation name in `ir.Value`.
BINARY: dict[type[Any], str] = {
    **{
        getattr(tirx, name): name.lower()
        for name in "Add Sub Mul Div FloorDiv FloorMod Min Max EQ NE LT LE GT GE And Or".split()
    },
    tirx.Mod: "floormod",
    **dict.fromkeys((tirx.BitwiseAnd, tirx.BitwiseOr, tirx.BitwiseXor), "bits"),
    **dict.fromkeys((tirx.LShift, tirx.RShift), "bits"),
}

#: What each operation counts as, for float and other types alike (see features.spec).
OPERATION_KINDS = {
    operation: kind
    for kind, operations in {
        "addsub": "add sub bits",
        "mul": "mul",
        "divmod": "div floordiv floormod",
        "cmp": "min max eq ne lt le gt ge",
        "bool": "and or not",
        "select": "select if",
        "math": "math",
    }.items()
    for operation in operations.split()
}

_Vars = dict[Any, sympy.Expr]
#: TVM's buffers, by identity.
_Buffers = dict[Any, ir.Buffer]


def load(func: tirx.PrimFunc) -> ir.SymbolicProgram:
    """The program of `func`; raises UnsupportedSchedule for forms the engine does not model."""
    root = func.body
    if not isinstance(root, s_stmt.SBlockRealize):
        raise UnsupportedSchedule("the function has no root block; pass an s_tir PrimFunc")
    buffers: _Buffers = {}
    for param in func.params:
        buffers[param] = make_buffer(param, is_parameter=True)
    for buffer in root.block.alloc_buffers:
        buffers[buffer] = make_buffer(buffer)
    return ir.SymbolicProgram(
        list(buffers.values()), _load_statement(root.block.body, buffers, {})
    )


def make_buffer(buffer: Any, is_parameter: bool = False) -> ir.Buffer:
    """The Buffer of a TVM buffer with constant shape."""
    shape = tuple(_constant(extent, f"shape of buffer {buffer.name}") for extent in buffer.shape)
    dtype = str(buffer.dtype)
    n_bytes = max(1, (int(tvm.DataType(dtype).bits) + 7) // 8)  # a bool takes one
    return ir.Buffer(buffer.name, shape, dtype, n_bytes, buffer.scope(), is_parameter)


def _constant(value: Any, what: str) -> int:
    if isinstance(value, int):
        return value
    if isinstance(value, tirx.IntImm):
        return int(value.value)
    raise UnsupportedSchedule(f"{what} is not a constant: dynamic shapes are not supported")


def _load_statement(
    statement: Any, buffers: _Buffers, loops: dict[Any, ir.IterComponent]
) -> list[ir.Loop | ir.Block]:
    if isinstance(statement, tirx.SeqStmt):
        nodes = [_load_statement(s, buffers, loops) for s in statement.seq]
        return [node for group in nodes for node in group]
    if isinstance(statement, tirx.For):
        component = ir.IterComponent(
            statement.loop_var.name, _constant(statement.extent, "a loop extent")
        )
        if statement.kind != tirx.ForKind.SERIAL or int(statement.min) != 0:
            raise UnsupportedSchedule("only serial loops from 0 are supported in a workload")
        body = _load_statement(statement.body, buffers, {**loops, statement.loop_var: component})
        return [ir.Loop([component], body)]
    if isinstance(statement, s_stmt.SBlockRealize):
        return [_load_block(statement, buffers, loops)]
    raise UnsupportedSchedule(f"statement {type(statement).__name__} outside of a block")


def _load_block(realize: Any, buffers: _Buffers, loops: dict[Any, ir.IterComponent]) -> ir.Block:
    block = realize.block
    if block.alloc_buffers or block.match_buffers or not _is_true(realize.predicate):
        raise UnsupportedSchedule(f"block {block.name_hint} allocates, matches or is predicated")
    iters, bindings, symbols = [], [], {}
    for iter_var, value in zip(block.iter_vars, realize.iter_values, strict=True):
        if iter_var.iter_type not in (0, 2):
            raise UnsupportedSchedule(f"block {block.name_hint} has an opaque iterator")
        symbol = index_expr.iter_symbol(iter_var.var.name)
        symbols[iter_var.var] = symbol
        kind: ir.IterKind = "spatial" if iter_var.iter_type == 0 else "reduce"
        iters.append(ir.Iter(symbol, _constant(iter_var.dom.extent, "an iterator domain"), kind))
        if value in loops:
            bindings.append(ir.Affine({loops[value]: 1}))
        elif isinstance(value, tirx.IntImm):
            bindings.append(ir.Affine({}, int(value.value)))
        else:
            raise UnsupportedSchedule(
                f"block {block.name_hint} binds {iter_var.var.name} to {value}, which is no loop; "
                "give each iterator a loop of its own"
            )
    annotations = {str(k): v for k, v in block.annotations.items()}
    stores = _load_stores(block.body, buffers, symbols)
    inits = () if block.init is None else _load_stores(block.init, buffers, symbols)
    return ir.Block(block.name_hint, iters, bindings, stores, inits, [], annotations)


def _is_true(predicate: Any) -> bool:
    return isinstance(predicate, tirx.IntImm) and bool(predicate.value)


def _load_stores(body: Any, buffers: _Buffers, symbols: _Vars) -> tuple[ir.Store, ...]:
    """The stores of a block's body: one, or values bound first and then stored."""
    statements = list(body.seq) if isinstance(body, tirx.SeqStmt) else [body]
    bound: dict[Any, Any] = {}
    while isinstance(statements[0], tirx.Bind):
        bind = statements.pop(0)
        bound[bind.var] = bind.value
    if len(statements) == 1:
        return (load_store(statements[0], buffers, symbols),)
    targets = [s.buffer for s in statements if isinstance(s, tirx.BufferStore)]
    stored = [bound.get(s.value) for s in statements if isinstance(s, tirx.BufferStore)]
    if len(set(targets)) < len(statements) or (bound and None in stored):
        raise UnsupportedSchedule(
            "a block with several stores must bind all values before it stores them, each to a "
            "buffer of its own"
        )
    stores = tuple(_store(s, bound.get(s.value, s.value), buffers, symbols) for s in statements)
    read = {access.buffer for store in stores for access in store.value.loads()}
    if not bound and any(store.target.buffer in read for store in stores):
        raise UnsupportedSchedule("a block reads what another of its stores has changed")
    return stores


def load_store(statement: Any, buffers: _Buffers, symbols: _Vars) -> ir.Store:
    """The Store of a BufferStore statement."""
    if not isinstance(statement, tirx.BufferStore):
        raise UnsupportedSchedule(
            f"a block's body must be one store, not {type(statement).__name__}; give every "
            "statement a block of its own"
        )
    return _store(statement, statement.value, buffers, symbols)


def _store(statement: Any, value: Any, buffers: _Buffers, symbols: _Vars) -> ir.Store:
    target = ir.Access(
        buffers[statement.buffer],
        tuple(index_expr.load_index(i, symbols, buffers) for i in statement.indices),
    )
    return ir.Store(target, load_value(value, buffers, symbols))


def _is_float(node: Any) -> bool:
    return str(node.ty).startswith(("float", "bfloat"))


def load_value(node: Any, buffers: _Buffers, symbols: _Vars) -> ir.Value:
    """The value tree of a TIR expression."""

    def visit(n: Any) -> ir.Value:
        return load_value(n, buffers, symbols)

    if isinstance(node, (tirx.IntImm, tirx.FloatImm)):
        constant = sympy.Integer(int(node.value)) if isinstance(node, tirx.IntImm) else None
        return ir.Value("const", _is_float(node), expr=constant)
    if node in symbols:
        return ir.Value("iter", False, expr=symbols[node])
    if isinstance(node, TensorLoad):
        indices = tuple(index_expr.load_index(i, symbols, buffers) for i in node.indices)
        access = ir.Access(buffers[node.source], indices)
        return ir.Value("load", _is_float(node), access=access)
    if isinstance(node, tirx.Cast):
        return ir.Value("cast", _is_float(node), (visit(node.value),))
    if isinstance(node, tirx.Not):
        return ir.Value("not", False, (visit(node.a),))
    if isinstance(node, tirx.BitwiseNot):
        return ir.Value("bits", False, (visit(node.a),))
    if isinstance(node, tirx.Select):
        args = (visit(node.condition), visit(node.true_value), visit(node.false_value))
        return ir.Value("select", _is_float(node), args, expr=_choice(node, symbols))
    if type(node) in BINARY:
        return _fold(ir.Value(BINARY[type(node)], _is_float(node), (visit(node.a), visit(node.b))))
    if isinstance(node, Call):
        return _load_call(node, visit)
    raise UnsupportedSchedule(f"expression {type(node).__name__} in a block body")


def _fold(value: ir.Value) -> ir.Value:
    """Integer arithmetic of iterators only becomes one index expression.

    Choices between such keep their parts, which are operations.
    """
    combine: Any = {
        "add": lambda a, b: a + b,
        "sub": lambda a, b: a - b,
        "mul": lambda a, b: a * b,
        "floordiv": expr.FloorDiv,
        "floormod": expr.FloorMod,
    }.get(value.op)
    left, right = value.args
    if value.is_float or combine is None or left.expr is None or right.expr is None:
        return value
    combined = combine(left.expr, right.expr)
    if any(side.args for side in value.args):
        return ir.Value(value.op, False, value.args, expr=combined)
    return ir.Value("iter", False, expr=combined)


def _choice(node: Any, symbols: _Vars) -> sympy.Expr | None:
    """A choice between integers as an index expression; None where data take part in it."""
    if not str(node.ty).startswith(("int", "uint")):
        return None
    try:
        return index_expr.load_index(node, symbols)
    except UnsupportedSchedule:
        return None


def _load_call(node: Any, visit: Any) -> ir.Value:
    name = node.op.name
    args = tuple(visit(a) for a in node.args)
    if name.endswith("if_then_else"):
        return ir.Value("if", _is_float(node), args)
    return ir.Value("math", _is_float(node), args)
