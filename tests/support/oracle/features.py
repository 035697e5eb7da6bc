"""A test oracle of the features: every value counted on the program TVM instantiates.

It enumerates iterations of the TIR that TVM's schedule holds and knows only the meanings stated
in `felix.features.spec`. Only for tiny programs. Programs and enumeration are in
`programs`, launches and analytic times in `analytic`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tvm import tirx
from tvm.ir.expr import Call

from felix.features import spec
from felix.space.trace_sketch import TraceSketch
from felix.target import Hardware, hardware
from tests.support.oracle import allocations, analytic, code, expressions, pipelines, programs
from tests.support.oracle.allocations import Site
from tests.support.oracle.expressions import element_bytes
from tests.support.oracle.programs import Access, Axis, Nest

SECTOR_BYTES, BANK_BYTES, WARP_LANES = 32, 128, (1, 2, 4, 8, 16)


def features(sketch: TraceSketch, row: Sequence[int]) -> dict[tuple[str, str], dict[str, float]]:
    """Every feature of every store: (block, buffer) -> name -> value in the units of `spec`."""
    machine = hardware(sketch.task.target)
    real = sketch.schedule(row)
    nests = programs.described(sketch, row, real)
    shapes, sites = allocations.buffers(real.mod)
    rows = [_store_features(nest, machine, shapes, sites) for nest in nests]
    for nest, values in zip(nests, rows, strict=True):
        values["code_copies"] = code.copies(nest, nests)
        values |= code.simd(nest, values, machine)
    by_kernel = analytic.kernel_values(nests, rows, real.mod, (shapes, sites), machine)
    return {
        (nest.name, str(nest.store.buffer.name)): dict.fromkeys(spec.NAMES, 0.0) | values | kernel
        for nest, values, kernel in zip(nests, rows, by_kernel, strict=True)
    }


# ---------------------------------------------------------------- features of one store


def _store_features(
    nest: Nest, machine: Hardware, shapes: dict[str, tuple[int, ...]], sites: dict[str, Site]
) -> dict[str, float]:
    values: dict[str, float] = {**_operations(nest), **_loops(nest)}
    target = nest.store.buffer
    values["alloc_bytes"] = math.prod(shapes[target.name]) * element_bytes(target)
    values["element_bytes"] = element_bytes(target)
    read_bytes = [element_bytes(access.buffer) for access in programs.loads(nest.store.value, ())]
    values["loaded_bytes"] = min(read_bytes, default=0)
    values["alloc_trips"] = _times_allocated(sites.get(str(target.name), ()))
    values["is_init"] = float(nest.is_init)
    values["is_reduction"] = float(bool(nest.reduce))
    footprint = Footprints(nest, machine)
    for slot, (buffer, accesses, read, written) in enumerate(nest.slots()[: spec.SLOTS]):
        of_slot = _slot(nest, slot, footprint, shapes[buffer.name], machine)
        of_slot |= {"read": float(read), "write": float(written)}
        of_slot["unique_bytes"] = programs.distinct_elements(nest, accesses) * element_bytes(
            buffer
        )
        values |= {f"buf{slot}.{name}": value for name, value in of_slot.items()}
    return values | pipelines.features(nest, values)


def _times_allocated(site: Site) -> int:
    last = {a.thread: a for a in site if a.thread is not None}
    return math.prod(a.extent for a in site if a.thread is None or last[a.thread] is a)


def is_index(node: Any) -> bool:
    """Whether a value is +, -, *, //, % of iterators and constants only."""
    if isinstance(node, (tirx.Var, tirx.IntImm)):
        return True
    index = (tirx.Add, tirx.Sub, tirx.Mul, tirx.FloorDiv, tirx.FloorMod)
    return isinstance(node, index) and is_index(node.a) and is_index(node.b)


def _operations(nest: Nest) -> dict[str, float]:
    """Operations of the stored value; arithmetic of iterators alone is part of an index."""
    counts = dict.fromkeys(
        [
            "float_add",
            "float_mul",
            "float_div",
            "float_cmp",
            "float_math",
            "select_ops",
            "bool_ops",
            "int_ops",
            "cast_ops",
        ],
        0,
    )
    names = {
        tirx.Add: "float_add",
        tirx.Sub: "float_add",
        tirx.Mul: "float_mul",
        tirx.Div: "float_div",
        tirx.Mod: "float_div",
        tirx.FloorDiv: "float_div",
        tirx.FloorMod: "float_div",
        tirx.Min: "float_cmp",
        tirx.Max: "float_cmp",
    }
    for node in expressions.walk(nest.store.value):
        is_float = not isinstance(node, tirx.Var) and str(node.ty).startswith(("float", "bfloat"))
        if expressions.is_if(node) or isinstance(node, tirx.Select):
            counts["select_ops"] += 1
        elif isinstance(node, (tirx.And, tirx.Or, tirx.Not)):
            counts["bool_ops"] += 1
        elif isinstance(node, tirx.Cast):
            counts["cast_ops"] += 1
        elif isinstance(node, expressions.COMPARISONS):
            counts["int_ops"] += 1
        elif isinstance(node, Call):
            counts["float_math" if is_float else "int_ops"] += 1
        elif type(node) in names:
            if is_float:
                counts[names[type(node)]] += 1
            elif not is_index(node):
                counts["int_ops"] += 1
    counts["float_ops"] = sum(n for name, n in counts.items() if name.startswith("float_"))
    return {name: float(n * nest.trip) for name, n in counts.items()}


def _loops(nest: Nest) -> dict[str, float]:
    axes = nest.axes
    feeding = expressions.used(nest.reduce)
    feeds = [a for a in axes if any(v.same_as(a.variable) for v in feeding)]
    live = [a for a in axes if a.extent > 1]
    steps = [a.unroll for a in axes if a.unroll is not None]
    in_sequence = [
        a for a in axes if not a.task and (a.thread is None or a.thread.startswith("vthread"))
    ]
    return {
        "trip_count": nest.trip,
        "active_trips": int(nest.points(axes).passing.sum()),
        "serial_trips": math.prod(a.extent for a in in_sequence),
        "reduce_trips": math.prod(a.extent for a in feeds if a.thread is None),
        "thread_reduce": math.prod(a.extent for a in feeds if a.thread is not None),
        "parallel_extent": math.prod(a.extent for a in axes if a.task and a.thread is None),
        "vector_extent": math.prod(a.extent for a in axes if a.vector),
        "innermost_extent": live[-1].extent if live else 1,
        "unroll_step": steps[-1] if steps else 0,
    }


class Footprints:
    """Hulls of all buffers of a nest while the axes from some depth on run."""

    def __init__(self, nest: Nest, machine: Hardware) -> None:
        self.nest = nest
        self.line = machine.cache_line_bytes
        self.slots = nest.slots()
        self.hulls: list[list[list[int]]] = []
        for depth in range(len(nest.axes), -1, -1):
            if depth == len(nest.axes) or nest.axes[depth].extent > 1:
                points = nest.points(nest.axes[depth:])
                hulls = [points.hull(accesses) for _, accesses, _, _ in self.slots]
            self.hulls.insert(0, hulls)

    def total(self, depth: int) -> int:
        return sum(
            math.prod(h) * element_bytes(b)
            for h, (b, _, _, _) in zip(self.hulls[depth], self.slots, strict=True)
        )

    def in_lines(self, depth: int, slot: int) -> int:
        """Bytes of a buffer's hull with each row rounded up to cache lines."""
        *rows, run = self.hulls[depth][slot] or [1]
        return (
            math.prod(rows) * -(-run * element_bytes(self.slots[slot][0]) // self.line) * self.line
        )

    def moved(self, slot: int, capacity: int) -> int:
        """Bytes into a cache that keeps the outermost footprint that fits.

        Footprints end where a task would begin another one, and inside of the vector loop.
        """
        axes = self.nest.axes
        depth = len(axes)
        for d in range(len(axes) - 1, -1, -1):
            inside_vector = d > 0 and axes[d].vector and axes[d - 1].vector
            if not axes[d].task and not inside_vector and self.total(d) <= capacity:
                depth = d
        return math.prod(a.extent for a in axes[:depth]) * self.in_lines(depth, slot)


def _slot(
    nest: Nest, slot: int, footprint: Footprints, shape: tuple[int, ...], machine: Hardware
) -> dict[str, float]:
    buffer, accesses, _, _ = footprint.slots[slot]
    scope = str(buffer.scope()).split(".")[0]
    element = element_bytes(buffer)
    in_task = nest.points([a for a in nest.axes if not a.task])
    live = [a for a in nest.axes if nest.points([a]).passing.sum() > 1]
    step = abs(_step(nest, accesses[0], shape, live[-1], 1)) if live else 0
    values = {
        "global": float(scope == "global"),
        "shared": float(scope == "shared"),
        "bytes": nest.trip * element,
        "task_bytes": math.prod(in_task.hull(accesses)) * element,
        "stride": step,
        "vector_stride": step if live and live[-1].vector else 0,
        **_reuse(nest, accesses, footprint),
    }
    if machine.is_gpu:
        sectors, ways = _warp(nest, accesses[0], shape, element)
        values["warp_sectors"] = sectors if scope == "global" else 0
        values["bank_ways"] = ways if scope == "shared" else 0
        return values
    last = max(machine.l3_bytes, machine.l2_bytes)
    for name, size in (("l1", machine.l1_bytes), ("l2", machine.l2_bytes), ("l3", last)):
        values[f"{name}_bytes"] = footprint.moved(slot, size)
    return values


def _step(nest: Nest, access: Access, shape: Sequence[int], axis: Axis, at: int) -> int:
    return programs.address(nest, access, shape, axis, at) - programs.address(
        nest, access, shape, None, 0
    )


def _reuse(nest: Nest, accesses: Sequence[Access], footprint: Footprints) -> dict[str, float]:
    for depth in range(len(nest.axes) - 1, -1, -1):
        axis = nest.axes[depth]
        points = nest.points([axis])
        runs = points.passing.sum() > 1
        if runs and all(w == 1 for a in accesses for w in points.hull([a])):
            return {
                "reuse": axis.extent,
                "reuse_trips": math.prod(a.extent for a in nest.axes[depth + 1 :]),
                "reuse_bytes": footprint.total(depth + 1),
            }
    return {"reuse": 0, "reuse_trips": 0, "reuse_bytes": 0}


def _warp(nest: Nest, access: Access, shape: Sequence[int], element: int) -> tuple[int, int]:
    """(sectors, bank ways): doubled by each lane 1, 2, 4, 8, 16 that lies a sector away or in
    the same bank."""
    sectors = ways = inner = 1
    threads = (axis for axis in nest.axes if axis.thread in ("threadIdx.x", "threadIdx.y"))
    for axis in sorted(threads, key=lambda each: str(each.thread)):
        passing = nest.points([axis]).passing
        steps = [lane // inner for lane in WARP_LANES]
        for step in (x for x in steps if 0 < x < axis.extent and passing[x]):
            away = abs(_step(nest, access, shape, axis, step)) * element
            sectors *= 2 if away >= SECTOR_BYTES else 1
            ways *= 2 if away > 0 and away % BANK_BYTES == 0 else 1
        inner *= axis.extent
    return sectors, ways
