"""What Felix accepts as a program, checked before anything else touches it.

The grammar is the one MetaSchedule's default spaces start from: a root block, serial loops of
constant extents, blocks that store expressions of loads, arithmetic and pure math functions.
Everything else is refused by name: opaque calls, already bound or vectorised loops, pragmas,
dynamic shapes, accesses outside a buffer, addresses that depend on data.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import tvm
from tvm import s_tir, tirx

from felix import errors

#: Buffer types TVM's default spaces schedule and its CPU and CUDA code generators build.
DTYPES = ("float32", "float64", "float16", "bfloat16", "int8", "uint8", "int16", "uint16",
          "int32", "uint32", "int64", "uint64", "bool")  # fmt: skip
MAX_BUFFER_BYTES = 2**40
#: Index products up to here stay below 2^31 after the padding of a split into threads.
_NARROW_LIMIT = 2**30

_ITER_TYPES = (tirx.IterVar.DataPar, tirx.IterVar.CommReduce)

ARITHMETIC = ("Add", "Sub", "Mul", "Div", "Mod", "FloorDiv", "FloorMod", "Min", "Max")
COMPARISONS = ("EQ", "NE", "LT", "LE", "GT", "GE", "And", "Or")
#: Pure functions of numbers, by TVM's operator name without its dialect.
MATH = frozenset(
    "exp exp2 exp10 erf tanh sinh cosh tan sin cos asin acos atan atan2 asinh acosh atanh log "
    "log2 log10 log1p sqrt rsqrt pow sigmoid fabs abs floor ceil round trunc nearbyint fmod "
    "hypot copysign nextafter ldexp isnan isinf isfinite popcount clz shift_left shift_right "
    "bitwise_and bitwise_or bitwise_xor bitwise_not if_then_else likely".split()
)
#: What a malformed object raises inside TVM's Python layer.
TVM_ERRORS = (ValueError, TypeError, RuntimeError, LookupError, AttributeError, ArithmeticError,
              RecursionError, MemoryError)  # fmt: skip


def first_line(error: BaseException) -> str:
    """The first line of an error's message; its type where it has none."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    return lines[0].strip() if lines else type(error).__name__


def function_name(call: Any) -> str:
    """The operator of a Call, without its dialect: tirx.exp -> exp."""
    return str(getattr(call.op, "name", call.op)).rpartition(".")[2]


def children(expr: Any) -> tuple[Any, ...]:
    """The operands of an expression of the grammar; WorkloadError for any other expression."""
    kind = type(expr).__name__
    if kind in ARITHMETIC or kind in COMPARISONS:
        return (expr.a, expr.b)
    if kind in ("IntImm", "FloatImm", "Var"):
        return ()
    if kind == "Not":
        return (expr.a,)
    if kind == "Cast":
        return (expr.value,)
    if kind == "Select":
        return (expr.condition, expr.true_value, expr.false_value)
    if kind in ("TensorLoad", "BufferLoad"):
        return tuple(expr.indices)
    if kind == "Call" and function_name(expr) in MATH:
        return tuple(expr.args)
    name = function_name(expr) if kind == "Call" else kind
    raise errors.WorkloadError(f"unsupported operation {name!r} in the program")


def expressions(expr: Any) -> Iterator[Any]:
    """The expression and everything below it."""
    stack = [expr]
    while stack:
        item = stack.pop()
        yield item
        stack.extend(children(item))


def is_load(expr: Any) -> bool:
    """Whether an expression reads a buffer element."""
    return type(expr).__name__ in ("TensorLoad", "BufferLoad")


def source(load: Any) -> Any:
    """The buffer a load reads."""
    return load.source if hasattr(load, "source") else load.buffer


def constant(value: Any) -> int | None:
    """A constant integer expression as int; None for any other."""
    if isinstance(value, int):
        return value
    return int(value.value) if type(value).__name__ == "IntImm" else None


def shape(buffer: Any) -> tuple[int, ...]:
    """The constant extents of a checked buffer."""
    return tuple(int(extent) for extent in buffer.ty.shape)


def dtype(buffer: Any) -> str:
    """The element type of a buffer."""
    return str(buffer.ty.dtype)


def check(condition: object, message: str) -> None:
    """Raise WorkloadError(message) unless the condition holds."""
    if not condition:
        raise errors.WorkloadError(message)


def normalise(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """A checked copy of `func` named main, with int32 indices where they cannot overflow.

    Raises:
        WorkloadError: outside the grammar of this module.
    """
    if not isinstance(func, tirx.PrimFunc):
        raise errors.WorkloadError(f"a task needs a TIR PrimFunc, got {type(func).__name__}")
    try:
        _check_function(func)
        clean = _clean(func)
        mod = tvm.IRModule({"main": clean})
        check(s_tir.analysis.verify_well_formed(clean, assert_mode=False), "the program is "
              "not well-formed TIR")  # fmt: skip
        _check_bounds(mod)
        s_tir.Schedule(mod)
        return _narrowed(mod)["main"] if _narrow_is_safe(clean) else clean
    except errors.WorkloadError:
        raise
    except TVM_ERRORS as error:
        raise errors.WorkloadError(f"TVM rejects the program: {first_line(error)}") from error


def _clean(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Only the attributes a plain program has: others steer code generation or name symbols."""
    attrs = {"global_symbol": "main", "s_tir": True, "tirx.noalias": True}
    body = tirx.PrimFunc(func.params, func.body, func.ret_type)
    return body.with_attr(attrs)


def _check_function(func: tirx.PrimFunc) -> None:
    check(len(func.params) > 0, "the program has no parameters")
    for parameter in func.params:
        if not hasattr(parameter.ty, "shape"):
            raise errors.WorkloadError(
                f"parameter {parameter.name!r} is a scalar; dynamic shapes and scalar arguments "
                "are not supported"
            )
        _check_buffer(parameter)
    root = func.body
    if type(root).__name__ != "SBlockRealize":
        raise errors.WorkloadError("the program has no root block (is it plain or lowered TIR?)")
    count = _check_statement(root)
    check(count, "the program stores nothing")


def _check_buffer(buffer: Any) -> None:
    kind, name = buffer.ty, buffer.name
    extents = [constant(extent) for extent in kind.shape]
    if any(extent is None for extent in extents):
        raise errors.WorkloadError(
            f"buffer {name!r} has the dynamic shape {list(kind.shape)}; every extent must be a "
            "constant"
        )
    check(all(extent > 0 for extent in extents if extent is not None),
          f"buffer {name!r} has an extent below 1: {extents}")  # fmt: skip
    kind_dtype = dtype(buffer)
    check(kind_dtype in DTYPES, f"buffer {name!r} has the unsupported dtype {kind_dtype}; "
          f"supported: {', '.join(DTYPES)}")  # fmt: skip
    elements = math.prod(extent for extent in extents if extent is not None)
    check(elements * element_bytes(kind_dtype) <= MAX_BUFFER_BYTES,
          f"buffer {name!r} is larger than 1 TiB")  # fmt: skip
    scope = str(kind.storage_scope)
    check(scope in ("", "global"), f"buffer {name!r} has the storage scope {scope!r}")
    check(not kind.strides, f"buffer {name!r} has explicit strides; it must be compact")
    check(not kind.allocated_addr, f"buffer {name!r} has a fixed address")
    offset = kind.elem_offset
    check(offset is None or constant(offset) == 0, f"buffer {name!r} has an element offset")


def element_bytes(name: str) -> int:
    """Bytes of one element of a dtype."""
    return 1 if name == "bool" else int("".join(c for c in name if c.isdigit())) // 8


def _check_statement(stmt: Any) -> int:
    """Check a statement and everything below it; the number of stores found."""
    rules: dict[str, Callable[[Any], int]] = {
        "SBlockRealize": _check_realize,
        "For": _check_loop,
        "SeqStmt": lambda s: sum(_check_statement(item) for item in s.seq),
        "BufferStore": _check_store,
        "IfThenElse": _check_branch,
    }
    kind = type(stmt).__name__
    check(kind in rules, f"unsupported statement {kind!r} in the program")
    return rules[kind](stmt)


def _check_loop(loop: Any) -> int:
    name = loop.loop_var.name
    check(int(loop.kind) == int(tirx.ForKind.SERIAL) and loop.thread_binding is None,
          f"loop {name!r} is already scheduled; give the program before scheduling")  # fmt: skip
    extent = constant(loop.extent)
    check(extent is not None, f"loop {name!r} has a dynamic extent")
    check(extent is not None and extent > 0, f"loop {name!r} has the extent {extent}")
    check(constant(loop.min) == 0, f"loop {name!r} does not start at 0")
    check(loop.step is None or constant(loop.step) == 1, f"loop {name!r} has a step")
    _check_annotations(loop.annotations)
    return _check_statement(loop.body)


def _check_realize(realize: Any) -> int:
    block = realize.block
    for value in (*realize.iter_values, realize.predicate):
        _check_expression(value)
    for iter_var in block.iter_vars:
        extent = constant(iter_var.dom.extent)
        check(extent is not None and extent > 0 and constant(iter_var.dom.min) == 0,
              f"block {block.name_hint!r} has an iterator without a constant domain")  # fmt: skip
        check(
            int(iter_var.iter_type) in _ITER_TYPES,
            f"block {block.name_hint!r} has an iterator that is neither spatial nor a reduction",
        )
    for buffer in block.alloc_buffers:
        _check_buffer(buffer)
    check(not block.match_buffers, f"block {block.name_hint!r} matches a buffer region")
    _check_annotations(block.annotations)
    if block.init is not None:
        _check_statement(block.init)
    return _check_statement(block.body)


def _check_annotations(annotations: Mapping[str, Any]) -> None:
    for key in annotations:
        check(not str(key).startswith("pragma"), f"the pragma {key!r} is not allowed")


def _check_store(store: Any) -> int:
    for expr in (store.value, *store.indices):
        _check_expression(expr)
    check(not any(is_load(part) for index in store.indices for part in expressions(index)),
          f"an index of {store.buffer.name!r} depends on data (scatter); unsupported")  # fmt: skip
    return 1


def _check_load(load: Any) -> None:
    """Random measuring data must not choose addresses: it would read outside the buffer."""
    if any(is_load(part) for index in load.indices for part in expressions(index)):
        name = source(load).name
        raise errors.WorkloadError(f"an index of {name!r} depends on data (gather); unsupported")


def _check_branch(branch: Any) -> int:
    _check_expression(branch.condition)
    count = _check_statement(branch.then_case)
    return count + (_check_statement(branch.else_case) if branch.else_case is not None else 0)


def _check_expression(expr: Any) -> None:
    for part in expressions(expr):
        if is_load(part):
            _check_load(part)
        elif type(part).__name__ == "Call":
            check(len(part.args) > 0, f"{function_name(part)!r} is called without arguments")


def _check_bounds(mod: tvm.IRModule) -> None:
    """Every access must stay inside its buffer: it would read or crash the measuring process."""
    try:
        s_tir.analysis.OOBChecker()(mod)
    except s_tir.schedule.ScheduleError as error:
        raise errors.WorkloadError("the program accesses a buffer out of bounds") from error


def blocks(stmt: Any) -> Iterator[Any]:
    """The blocks of a checked statement, in program order."""
    match type(stmt).__name__:
        case "SBlockRealize":
            yield stmt.block
            yield from blocks(stmt.block.body)
        case "SeqStmt":
            for item in stmt.seq:
                yield from blocks(item)
        case "For":
            yield from blocks(stmt.body)
        case "IfThenElse":
            yield from blocks(stmt.then_case)
            if stmt.else_case is not None:
                yield from blocks(stmt.else_case)


def _narrow_is_safe(func: tirx.PrimFunc) -> bool:
    """Whether no index, offset or fused loop can reach 2^31, and no data is 64-bit integer."""
    all_blocks = list(blocks(func.body))
    buffers = [*func.params, *(buffer for block in all_blocks for buffer in block.alloc_buffers)]
    if any(dtype(buffer) in ("int64", "uint64") for buffer in buffers):
        return False
    sizes = [math.prod(shape(buffer)) for buffer in buffers]
    for block in all_blocks:
        for kind in {int(iter_var.iter_type) for iter_var in block.iter_vars}:
            sizes.append(math.prod(int(v.dom.extent) for v in block.iter_vars
                                   if int(v.iter_type) == kind))  # fmt: skip
    return max(sizes) <= _NARROW_LIMIT


def _narrowed(mod: tvm.IRModule) -> tvm.IRModule:
    return tirx.transform.ForceNarrowIndexToInt32()(mod)
