"""Buffers of programs that TVM instantiated: where TVM allocates them, and what is met there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import tvm
from tvm import s_tir, tirx
from tvm.s_tir import stmt as s_stmt

from tests.support.oracle import programs

Site = tuple[programs.Axis, ...]


def buffers(module: tvm.IRModule) -> tuple[dict[str, tuple[int, ...]], dict[str, Site]]:
    """Shape each buffer needs inside its allocation, and the loops around that, by name.

    The place is TVM's choice; the shape is the range of indices met there.
    """
    func = module["main"]
    shapes = {p.name: tuple(int(x) for x in p.shape) for p in func.params}
    sites: dict[str, Site] = {}
    placed = s_tir.transform.PlanAndUpdateBufferAllocationLocation()(
        s_tir.transform.LowerInitBlock()(s_tir.transform.LowerCrossThreadReduction()(module))
    )
    known = {str(b.name): b for b in func.body.block.alloc_buffers}
    stores = programs.nests(module)
    for name, site in _allocations(placed["main"].body, ()):
        if name in known:
            sites[name] = site
            shapes[name] = _touched_shape(stores, module, known[name], len(site))
    return shapes, sites


def _allocations(node: Any, axes: Site) -> Iterator[tuple[str, Site]]:
    if isinstance(node, tirx.SeqStmt):
        for child in node.seq:
            yield from _allocations(child, axes)
    elif isinstance(node, tirx.For):
        yield from _allocations(node.body, (*axes, programs.make_axis(node)))
    elif isinstance(node, s_stmt.SBlockRealize):
        for buffer in node.block.alloc_buffers:
            yield str(buffer.name), axes
        yield from _allocations(node.block.body, axes)
    elif isinstance(node, tirx.IfThenElse):
        yield from _allocations(node.then_case, axes)


def _touched_shape(
    stores: list[programs.Nest], module: tvm.IRModule, buffer: Any, depth: int
) -> tuple[int, ...]:
    """Range of the indices per dimension inside one allocation, the largest of all."""
    scope = str(buffer.scope()).split(".")[0]
    spanned = {"shared": ("threadIdx", "vthread"), "local": ()}.get(scope, ("",))
    outer_of = dict(_outer_loops(module, depth))
    lows: dict[tuple[int, ...], np.ndarray] = {}
    highs: dict[tuple[int, ...], np.ndarray] = {}
    for nest in stores:
        for user, accesses, _, _ in nest.slots():
            if user.name != buffer.name:
                continue
            block = nest.name if nest.name in outer_of else nest.name.removesuffix("_init")
            outer = outer_of[block]
            fixed = [
                a
                for a in nest.axes
                if any(v.same_as(a.variable) for v in outer)
                and not (a.thread is not None and a.thread.startswith(spanned or "-"))
            ]
            rest = [a for a in nest.axes if a not in fixed]
            points = programs.Points(nest, [*fixed, *rest])
            keep = points.passing.reshape(*(a.extent for a in fixed), -1)
            for access in accesses:
                index = np.stack(points.indices(access)).reshape(
                    len(access.indices), *(a.extent for a in fixed), -1
                )
                far = 1 << 40
                key = tuple(a.extent for a in fixed)
                low = np.where(keep, index, far).min(-1)
                high = np.where(keep, index, -far).max(-1)
                lows[key] = np.minimum(lows.get(key, low), low)
                highs[key] = np.maximum(highs.get(key, high), high)
    ((key, low),) = lows.items()
    width = (highs[key] - low).reshape(len(buffer.shape), -1).max(-1) + 1
    return tuple(int(w) for w in width)


def _outer_loops(module: tvm.IRModule, depth: int) -> Iterator[tuple[str, tuple[Any, ...]]]:
    root = module["main"].body.block.body
    for axes, _, realize in programs.leaves(root, [], ()):
        yield str(realize.block.name_hint), tuple(a.variable for a in axes[:depth])
