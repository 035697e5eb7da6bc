"""The memory for a network's intermediate values, made once and used by every call.

TVM plans which values share a storage, and `main` would take each storage from a pool that all
networks share, and give it back. A CUDA graph writes to the memory of its capture whenever it is
replayed, so that memory must be the network's alone. Here the planned storages become parameters
of `main`, behind all others, and the function `workspace` makes them.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax

#: The function that makes the storages; a network without intermediate values has none.
FUNCTION = "workspace"
_ALLOCATION = "relax.memory.alloc_storage"


@tvm.transform.module_pass(opt_level=0, name="LiftWorkspace")
class Lift:
    """The pass; storages are those that `StaticPlanBlockMemory` planned, their sizes constants."""

    def transform_module(
        self, mod: tvm.IRModule, _context: tvm.transform.PassContext
    ) -> tvm.IRModule:
        """The module with its storages made by `workspace`."""
        main = mod["main"]
        storages = [
            binding
            for block in main.body.blocks
            for binding in block.bindings
            if _allocates(binding.value)
        ]
        if not storages:
            return mod
        mod = mod.clone()
        mod.update_func(mod.get_global_var("main"), _taking(main, storages))
        mod[FUNCTION] = _making(storages)
        return mod


def _allocates(value: Any) -> bool:
    if not isinstance(value, relax.Call) or not isinstance(value.op, tvm.ir.Op):
        return False
    return bool(value.op.name == _ALLOCATION)


def _taking(main: relax.Function, storages: list[Any]) -> relax.Function:
    """`main` with these storages as its last parameters."""
    blocks = [
        relax.BindingBlock([each for each in block.bindings if not _allocates(each.value)])
        for block in main.body.blocks
    ]
    return relax.Function(
        [*main.params, *(each.var for each in storages)],
        relax.SeqExpr(blocks, main.body.body),
        main.ret_ty,
        main.is_pure,
        main.attrs,
    )


def _making(storages: list[Any]) -> relax.Function:
    """A function that returns the storages."""
    made = [
        relax.VarBinding(relax.Var(f"s{number}", each.var.ty), each.value)
        for number, each in enumerate(storages)
    ]
    kinds = relax.TupleType([each.var.ty for each in made])
    result = relax.Var("all", kinds)
    bindings = [*made, relax.VarBinding(result, relax.Tuple([each.var for each in made]))]
    function = relax.Function(
        [], relax.SeqExpr([relax.BindingBlock(bindings)], result), kinds, is_pure=False
    )
    return function.with_attr("global_symbol", FUNCTION).with_attr("relax.force_pure", True)
