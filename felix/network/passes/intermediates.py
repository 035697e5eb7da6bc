"""Buffers between the kernels of one program become intermediate values of the network.

TVM's host code takes the memory of such a buffer from a pool of the calling thread, which frees it
when another program needs more, or the thread ends. A captured CUDA graph would go on writing
there. Here the buffer becomes one more result of its program, which nobody reads: its memory is
planned and made with that of all intermediate values (`workspace`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tvm
from tvm import relax, tirx
from tvm.relax import expr_functor
from tvm.s_tir import stmt as s_stmt

from felix.network import groups
from felix.network.passes import statements

_GLOBAL = ("", "global")
_CALL = "relax.call_tir"


@tvm.transform.module_pass(opt_level=0, name="LiftIntermediates")
class Lift:
    """The pass, for scheduled programs; those that are called in place stay as they are."""

    def transform_module(
        self, mod: tvm.IRModule, _context: tvm.transform.PassContext
    ) -> tvm.IRModule:
        """The module whose programs allocate nothing between their kernels."""
        lifted = {}
        for symbol in _called(mod["main"]):
            buffers = _between_kernels(mod[symbol])
            if buffers:
                lifted[symbol] = buffers
        if not lifted:
            return mod
        mutator = _Calls(mod, lifted)
        main = mutator.visit_expr(mod["main"])
        mutator.builder_.update_func(mod.get_global_var("main"), main)
        others = {variable.name_hint for variable in mod.get_global_vars()} - set(lifted)
        clean = relax.transform.DeadCodeElimination(sorted(others))
        return clean(mutator.builder_.finalize())


def with_unread_results(
    builder: relax.BlockBuilder, call: relax.Call, n_results: int
) -> relax.Expr:
    """The first results of a call, as a call has them that has no more than these."""
    made = builder.emit(call)
    results = [relax.TupleGetItem(made, number) for number in range(n_results)]
    return results[0] if n_results == 1 else relax.Tuple(results)


def results_of(call: relax.Call) -> list[Any]:
    """The types of the results of a call of a program."""
    (kind,) = call.ty_args
    return list(kind.fields) if isinstance(kind, relax.TupleType) else [kind]


def _called(main: relax.Function) -> list[str]:
    """The programs that are called, and never in place or with sizes as arguments."""
    plain: dict[str, bool] = {}

    def visit(expression: relax.Expr) -> None:
        symbol = groups.called(expression)
        if symbol is not None:
            is_plain = expression.op.name == _CALL and len(expression.args) == 2
            plain[symbol] = plain.get(symbol, True) and is_plain

    relax.analysis.post_order_visit(main, visit)
    return [symbol for symbol, each in plain.items() if each]


def _between_kernels(func: tirx.PrimFunc) -> list[tirx.Buffer]:
    """The buffers in global memory that several statements of the program use."""
    root = func.body.block if isinstance(func.body, s_stmt.SBlockRealize) else None
    if root is None or not isinstance(root.body, tirx.SeqStmt):
        return []
    uses = [set.union(*statements.uses(part)) for part in root.body.seq]
    return [
        buffer
        for buffer in root.alloc_buffers
        if buffer.scope() in _GLOBAL
        and statements.is_plain(buffer)
        and sum(buffer in used for used in uses) > 1
    ]


def _writing(func: tirx.PrimFunc, buffers: Sequence[tirx.Buffer]) -> tirx.PrimFunc:
    """The program with these buffers as its last parameters."""
    root = func.body.block
    left = [buffer for buffer in root.alloc_buffers if buffer not in buffers]
    return statements.program(func, [*func.params, *buffers], list(root.body.seq), left)


@expr_functor.mutator
class _Calls(expr_functor.PyExprMutator):  # type: ignore[misc]
    """Gives calls of programs the results that nobody reads."""

    def __init__(self, mod: tvm.IRModule, lifted: Mapping[str, Sequence[tirx.Buffer]]) -> None:
        super().__init__(mod)
        self._buffers = lifted
        self._programs = {
            symbol: self.builder_.add_func(_writing(mod[symbol], buffers), f"{symbol}_lifted")
            for symbol, buffers in lifted.items()
        }

    def visit_call_(self, call: relax.Call) -> Any:
        """One call, after its arguments."""
        visited = self.visit_expr_post_order(call)
        symbol = groups.called(visited)
        if symbol not in self._programs:
            return visited
        results = results_of(visited)
        more = [
            relax.TensorType([int(extent) for extent in buffer.shape], str(buffer.dtype))
            for buffer in self._buffers[symbol]
        ]
        wider = relax.call_tir(self._programs[symbol], visited.args[1], [*results, *more])
        return with_unread_results(self.builder_, wider, len(results))
