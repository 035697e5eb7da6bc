"""Sums of one term, and other reductions of one element, as what they are: no reductions.

TVM's default schedules put what follows such a reduction inside of it, and apply it to the
beginning as well: y = f(0); y = f(y + x) in place of f(0 + x).
"""

from __future__ import annotations

from typing import Any

from tvm import s_tir, tirx
from tvm.ir.expr import TensorLoad
from tvm_ffi import structural

from felix.tir import grammar


def _of_block(block: s_tir.SBlock) -> s_tir.SBlock:
    reduced = [each for each in block.iter_vars if each.iter_type == grammar.REDUCE]
    stores = block.body, block.init
    if not all(isinstance(each, tirx.BufferStore) for each in stores):
        return block
    if any(int(each.dom.extent) != 1 for each in reduced):
        return block
    store, start = stores

    def read(load: TensorLoad) -> Any:
        return start.value if load.source.same_as(store.buffer) else load

    value = structural.structural_map(store.value, (TensorLoad, read))
    return grammar.changed(
        block,
        iter_vars=[tirx.IterVar(each.dom, each.var, grammar.SPATIAL) for each in block.iter_vars],
        body=tirx.BufferStore(store.buffer, value, store.indices),
        init=None,
    )


#: A pass of TVM.
REMOVED = tirx.transform.prim_func_pass(
    lambda func, _mod, _context: func.with_body(
        structural.structural_map(func.body, (s_tir.SBlock, _of_block))
    ),
    opt_level=0,
    name="felix.UnitReductions",
)
