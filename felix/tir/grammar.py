"""The operations of a program, and how to look at expressions made of them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, tirx
from tvm_ffi import structural

from felix import errors

#: Buffer types TVM's default spaces schedule and its CPU and CUDA code generators build.
DTYPES = ("float32", "float64", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "int8",
          "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "bool")  # fmt: skip
#: Those of data that are copied and converted to wider floats, and nothing else.
STORAGE_DTYPES = ("float8_e4m3fn", "float8_e5m2")
ARITHMETIC = ("Add", "Sub", "Mul", "Div", "Mod", "FloorDiv", "FloorMod", "Min", "Max")
COMPARISONS = ("EQ", "NE", "LT", "LE", "GT", "GE")
LOGIC = ("And", "Or")
#: Of integers; the first three of bools as well.
BITWISE = ("BitwiseAnd", "BitwiseOr", "BitwiseXor", "LShift", "RShift")
DIVISIONS = ("Div", "Mod", "FloorDiv", "FloorMod")
SHIFTS = ("LShift", "RShift")

#: The types of nodes of two operands that TVM's passes and ours rewrite.
BINARY_NODES = tuple(getattr(tirx, name) for name in (*ARITHMETIC, *COMPARISONS))
#: Types of iterators of a block.
SPATIAL, REDUCE = tirx.IterVar.DataPar, tirx.IterVar.CommReduce

#: Operators of two operands as Python writes them.
SYMBOLS = {"Add": "+", "Sub": "-", "Mul": "*", "FloorDiv": "//", "FloorMod": "%", "EQ": "==",
           "NE": "!=", "LT": "<", "LE": "<=", "GT": ">", "GE": ">=", "And": "and",
           "Or": "or", "BitwiseAnd": "&", "BitwiseOr": "|", "BitwiseXor": "^", "LShift": "<<",
           "RShift": ">>"}  # fmt: skip

#: Pure functions by the full name of TVM's operator, with the kinds of their arguments and of
#: their result: "f" a float, "i" an integer, "t" any number, the same letter the same type.
FUNCTIONS = {
    **{
        f"tirx.{name}": ("f", "f")
        for name in (
            "exp exp2 exp10 erf tanh sinh cosh tan sin cos asin acos atan asinh acosh atanh log "
            "log10 log1p sqrt rsqrt sigmoid fabs floor round trunc nearbyint"
        ).split()
    },
    "prim.ceil": ("f", "f"),
    "prim.log2": ("f", "f"),
    **{f"tirx.{name}": ("ff", "f") for name in "pow atan2 fmod hypot copysign nextafter".split()},
    "tirx.ldexp": ("fi", "f"),
    "tirx.isnan": ("f", "bool"),
    "tirx.isinf": ("f", "bool"),
    "tirx.isfinite": ("f", "bool"),
    "tirx.popcount": ("i", "i"),
    "prim.clz": ("i", "int32"),
    "prim.if_then_else": ("btt", "t"),
    "prim.likely": ("b", "bool"),
}
#: Its result has the type that the call says, of as many bits as the argument.
REINTERPRET = "tirx.reinterpret"
#: What primitives and rules of TVM raise; an AttributeError would be a mistake in rules of ours.
SCHEDULE_ERRORS = (ValueError, TypeError, RuntimeError, LookupError, ArithmeticError, MemoryError)

#: What a malformed object raises inside TVM's Python layer.
TVM_ERRORS = (*SCHEDULE_ERRORS, AttributeError)

#: What TVM itself raises where it cannot schedule a program, and nothing else does.
TVM_FAILURES = (s_tir.ScheduleError, tvm.error.InternalError)


def first_line(error: BaseException) -> str:
    """The first line of an error's message; its type where it has none."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    return lines[0].strip() if lines else type(error).__name__


def check(condition: object, message: str) -> None:
    """Raise WorkloadError(message) unless the condition holds."""
    if not condition:
        raise errors.WorkloadError(message)


def function_name(call: Any) -> str:
    """The operator of a Call of the grammar, without its dialect: tirx.exp -> exp."""
    return str(getattr(call.op, "name", call.op)).rpartition(".")[2]


def children(expr: Any) -> tuple[Any, ...]:
    """The operands of an expression of the grammar; WorkloadError for any other expression."""
    kind = type(expr).__name__
    if kind in ARITHMETIC or kind in COMPARISONS or kind in LOGIC or kind in BITWISE:
        return (expr.a, expr.b)
    if kind in ("IntImm", "FloatImm", "Var"):
        return ()
    if kind in ("Not", "BitwiseNot"):
        return (expr.a,)
    if kind == "Cast":
        return (expr.value,)
    if kind == "Select":
        return (expr.condition, expr.true_value, expr.false_value)
    if kind == "TensorLoad":
        return tuple(expr.indices)
    if kind == "Call" and _is_function(expr.op):
        return tuple(expr.args)
    name = function_name(expr) if kind == "Call" else kind
    raise errors.WorkloadError(f"unsupported operation {name!r} in the program")


def _is_function(operator: Any) -> bool:
    name = operator.name if isinstance(operator, tvm.ir.Op) else ""
    return name in FUNCTIONS or name == REINTERPRET


def expressions(expr: Any) -> Iterator[Any]:
    """The expression and everything below it."""
    stack = [expr]
    while stack:
        item = stack.pop()
        yield item
        stack.extend(children(item))


def height(expr: Any) -> int:
    """Levels of an expression; what it shares is looked at once."""
    heights: dict[Any, int] = {}
    stack = [expr]
    while stack:
        below = [child for child in children(stack[-1]) if child not in heights]
        if below:
            stack.extend(below)
            continue
        item = stack.pop()
        heights[item] = 1 + max((heights[child] for child in children(item)), default=0)
    return heights[expr]


def text(expr: Any, depth: int = 8) -> str:
    """An expression as a message shows it; what lies deep is left out."""
    kind = type(expr).__name__
    if kind in ("IntImm", "FloatImm"):
        return str(expr.value)
    if kind == "Var":
        return str(expr.name)
    if depth == 0:
        return "…"
    below = [text(child, depth - 1) for child in children(expr)]
    if kind in SYMBOLS:
        return f"({below[0]} {SYMBOLS[kind]} {below[1]})"
    if kind == "TensorLoad":
        return f"{expr.source.name}[{', '.join(below)}]"
    name = function_name(expr) if kind == "Call" else dtype(expr) if kind == "Cast" else kind
    return f"{name}({', '.join(below)})"


def is_load(expr: Any) -> bool:
    """Whether an expression reads a buffer element."""
    return type(expr).__name__ == "TensorLoad"


def depends_on_data(expr: Any) -> bool:
    """Whether an expression reads any buffer element."""
    return any(is_load(part) for part in expressions(expr))


def is_constant(expr: Any, value: int) -> bool:
    """Whether an expression is an integer constant of this value."""
    return isinstance(expr, tirx.IntImm) and int(expr) == value


def reinterpreted(expr: Any) -> Any | None:
    """The number whose bits an expression is; None of another one."""
    is_call = type(expr).__name__ == "Call" and getattr(expr.op, "name", "") == REINTERPRET
    return expr.args[0] if is_call else None


def substituted(expr: Any, values: Mapping[Any, Any]) -> Any:
    """The expression with variables replaced."""
    return structural.structural_map(
        expr, (tirx.Var, lambda variable: values.get(variable, variable))
    )


def nodes(root: Any, kind: type[Any]) -> list[Any]:
    """The nodes of a type in an expression or statement."""
    found: list[Any] = []
    structural.structural_walk(root, ((kind, found.append),))
    return found


def is_nonzero(expr: Any) -> bool:
    """Whether an expression is Select(x == 0, c, x) with a constant c that is not 0."""
    if type(expr).__name__ != "Select" or type(expr.condition).__name__ != "EQ":
        return False
    compared, zero = expr.condition.a, expr.condition.b
    constants = (type(zero).__name__, type(expr.true_value).__name__) == ("IntImm", "IntImm")
    return bool(
        constants
        and int(zero) == 0
        and int(expr.true_value) != 0
        and tvm_ffi.structural_equal(compared, expr.false_value)
    )


def shape(buffer: Any) -> tuple[int, ...]:
    """The constant extents of a checked buffer."""
    return tuple(int(extent) for extent in buffer.ty.shape)


def dtype(expr: Any) -> str:
    """The type of an expression, or of a buffer's elements."""
    return str(expr.ty.dtype)


def element_bytes(name: str) -> int:
    """Bytes of one element of a dtype."""
    return 1 if name == "bool" else bits(name) // 8


def bits(name: str) -> int:
    """Bits of one element of a dtype; 1 for bool."""
    digits = re.match(r"[a-z]+(\d+)", name)
    return 1 if digits is None else int(digits[1])


def is_float(name: str) -> bool:
    """Whether a dtype is a floating-point one."""
    return name.startswith(("float", "bfloat"))


def statements(stmt: Any) -> Iterator[Any]:
    """A checked statement and those inside of it, but not inside of its blocks."""
    yield stmt
    match type(stmt).__name__:
        case "SeqStmt":
            for item in stmt.seq:
                yield from statements(item)
        case "For":
            yield from statements(stmt.body)
        case "IfThenElse":
            yield from statements(stmt.then_case)
            if stmt.else_case is not None:
                yield from statements(stmt.else_case)


def blocks(stmt: Any) -> Iterator[Any]:
    """The blocks of a checked statement, in program order."""
    for each in statements(stmt):
        if type(each).__name__ == "SBlockRealize":
            yield each.block
            yield from blocks(each.block.body)


def extent(block: Any, *kinds: int) -> int:
    """Of all iterators of a block together, or of those of these kinds."""
    chosen = (each for each in block.iter_vars if not kinds or each.iter_type in kinds)
    return math.prod(int(each.dom.extent) for each in chosen)


def buffers(func: tirx.PrimFunc) -> list[Any]:
    """The parameters of a checked function, then the buffers that its blocks allocate."""
    inner = (buffer for block in blocks(func.body) for buffer in block.alloc_buffers)
    return [*func.params, *inner]


def changed(block: s_tir.SBlock, **fields: Any) -> s_tir.SBlock:
    """The block with these fields in place of its own."""
    names = ("iter_vars", "reads", "writes", "name_hint", "body", "init", "alloc_buffers",
             "match_buffers", "annotations")  # fmt: skip
    return s_tir.SBlock(**({name: getattr(block, name) for name in names} | fields))
