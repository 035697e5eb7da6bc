"""From a symbolic program to its table of feature formulas."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Collection

import sympy

from felix.features import analytic, code, memory, spec
from felix.features import stores as store_rows
from felix.symbolic import expr, ir, kernels, load, parallelize, scalar
from felix.symbolic.ir import Scalar, SymbolicProgram
from felix.target import Hardware


@dataclasses.dataclass(frozen=True, slots=True)
class Table:
    """Formulas of one program: `values[r][f]` for row r and feature f of `spec.NAMES`.

    They may hold shared subexpressions (`felix.symbolic.expr`).
    """

    rows: tuple[store_rows.RowName, ...]
    values: tuple[tuple[sympy.Expr, ...], ...]


def build(program: SymbolicProgram, hardware: Hardware) -> Table:
    """All features of a program after its postprocessors."""
    stores = store_rows.rows(program)
    allocated = {a.buffer: a for a in kernels.allocations(program)}
    shapes = {buffer: buffer.shape for buffer in program.buffers}
    shapes |= {buffer: a.shape for buffer, a in allocated.items()}
    body = [_row_values(row, allocated, shapes, hardware) for row in stores]
    for row, features, copies in zip(stores, body, code.copies(stores), strict=True):
        features["code_copies"] = copies
        features |= code.row_values(row, features, hardware.vector_lanes, hardware.is_gpu)
    body = [{name: expr.share(value) for name, value in row.items()} for row in body]
    by_kernel = analytic.kernel_values(program, stores, body, hardware)
    values = []
    for row, features in zip(stores, body, strict=True):
        full = {**features, **by_kernel[row.kernel]}
        values.append(tuple(sympy.sympify(full.get(name, 0)) for name in spec.NAMES))
    return Table(tuple(r.name for r in stores), tuple(values))


def _row_values(
    row: store_rows.Row,
    allocated: dict[ir.Buffer, kernels.Allocation],
    shapes: dict[ir.Buffer, tuple[Scalar, ...]],
    hardware: Hardware,
) -> dict[str, Scalar]:
    values = _compute(row)
    values |= _structure(row)
    values |= _allocation(row, allocated)
    loaded = [access.buffer.dtype_bytes for access in row.store.value.loads()]
    values["element_bytes"] = row.store.target.buffer.dtype_bytes
    values["loaded_bytes"] = min(loaded, default=0)
    stack = memory.levels(row, hardware)
    for slot in range(min(spec.SLOTS, len(row.accesses))):
        slot_values = memory.slot_values(row, slot, stack, shapes, hardware)
        names = [f"buf{slot}.{name}" for name in spec.SLOT_NAMES]
        values |= dict(zip(names, slot_values, strict=True))
    return values | code.pipeline_values(row, values)


def operation_counts(value: ir.Value) -> Counter[str]:
    """Operations of a value tree by feature name, each node once.

    Index arithmetic inside of loads is not counted; integer work of the value itself is.
    """
    counts: Counter[str] = Counter()
    floats = {
        "addsub": "float_add",
        "mul": "float_mul",
        "divmod": "float_div",
        "cmp": "float_cmp",
        "math": "float_math",
    }
    for node in value.walk():
        kind = load.OPERATION_KINDS.get(node.op)
        if node.op == "cast":
            counts["cast_ops"] += 1
        elif kind == "select":
            counts["select_ops"] += 1
        elif kind == "bool":
            counts["bool_ops"] += 1
        elif kind is not None:
            counts[floats[kind] if node.is_float else "int_ops"] += 1
    return counts


def _compute(row: store_rows.Row) -> dict[str, Scalar]:
    counts = operation_counts(row.store.value)
    trip = row.trip
    floats = sum(n for name, n in counts.items() if name.startswith("float_"))
    executed = {name: trip * n for name, n in counts.items()}
    return {**executed, "float_ops": trip * floats if floats else 0}


def _structure(row: store_rows.Row) -> dict[str, Scalar]:
    loops = row.loops
    innermost: Scalar = 1
    for loop in loops:
        innermost = scalar.select(scalar.equal(loop.extent, 1), innermost, loop.extent)
    plain = [lp for lp in loops if lp.thread is None]
    virtual = [lp.extent for lp in loops if (lp.thread or "").startswith("vthread")]
    one_by_one = [scalar.select(store_rows.is_task(lp), 1, lp.extent) for lp in plain]
    tasks = [scalar.select(store_rows.is_task(lp), lp.extent, 1) for lp in plain]
    lanes = [scalar.select(store_rows.is_vector(lp), lp.extent, 1) for lp in plain]
    unbound, bound = memory.reduce_trips(row)
    steps = [lp.annotations.get(parallelize.PRAGMA_STEP) for lp in loops]
    step: Scalar = next((s for s in reversed(steps) if s is not None), 0)
    return {
        "trip_count": row.trip,
        "active_trips": _active(row),
        "serial_trips": ir.product([*one_by_one, *virtual]),
        "reduce_trips": unbound,
        "thread_reduce": bound,
        "parallel_extent": ir.product(tasks),
        "vector_extent": ir.product(lanes),
        "innermost_extent": innermost,
        "unroll_step": step,
        "is_init": int(row.is_init),
        "is_reduction": int(row.block.is_reduction and not row.is_init),
    }


def _active(row: store_rows.Row) -> Scalar:
    """Iterations that pass the guards: each guarded flat index keeps its first `bound` values.

    A component that is derived from the loops takes each of its values equally often.
    """
    components = {comp for lp in row.loops for comp in lp.components}
    passing, issued = [row.trip], []
    for flat, bound in row.block.guards:
        if all(_runs(comp, components) for comp in flat.terms):
            whole = ir.product(comp.extent for comp in flat.terms)
            passing.append(scalar.minimum(bound, whole))
            issued.append(whole)
    if all(isinstance(value, int) for value in (*passing, *issued)):
        return ir.product(passing) // ir.product(issued)
    return ir.product(passing) / ir.product(issued)


def _runs(component: ir.IterComponent, components: Collection[ir.IterComponent]) -> bool:
    """Whether a component takes all of its values while some others do."""
    source = component.source
    if source is None or not source.radix:
        return component in components
    return all(_runs(comp, components) for comp in source.flat.terms)


def _allocation(
    row: store_rows.Row, allocated: dict[ir.Buffer, kernels.Allocation]
) -> dict[str, Scalar]:
    buffer = row.store.target.buffer
    if buffer not in allocated:
        return {"alloc_bytes": ir.product(buffer.shape) * buffer.dtype_bytes, "alloc_trips": 1}
    site = allocated[buffer]
    times = ir.product(lp.extent for lp in store_rows.distinct_threads(site.loops))
    return {"alloc_bytes": site.size_bytes, "alloc_trips": times}
