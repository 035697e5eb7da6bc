"""Buffers between the kernels of one program become intermediate values of the network.

TVM's host code takes the memory of such a buffer from a pool of the calling thread, which frees it
when another program needs more, or the thread ends. A captured CUDA graph would go on writing
there. Here the buffer becomes one more result of its program, which nobody reads: its memory is
planned and made with that of all intermediate values (`workspace`).

Programs that keep such a buffer, because they allocate it where the pass does not reach or with an
extent that it does not know (TVM's sort and scan), get names that end with `SCRATCH`: their calls
cannot be captured.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import tvm
from tvm import relax, tirx
from tvm.relax import expr_functor
from tvm.s_tir import stmt as s_stmt

from felix.network import groups
from felix.network.passes import statements

#: Ends the name of a program that takes memory from the pool.
SCRATCH = "_with_scratch"
_GLOBAL = ("", "global")
_CALL = "relax.call_tir"


@tvm.transform.module_pass(opt_level=0, name="LiftIntermediates")
class Lift:
    """The pass, for scheduled programs; those that are called in place stay as they are."""

    def transform_module(
        self, mod: tvm.IRModule, _context: tvm.transform.PassContext
    ) -> tvm.IRModule:
        """The module whose programs allocate nothing between their kernels."""
        called = _called(mod["main"])
        programs = {
            symbol: buffers for symbol in called if (buffers := _between_kernels(mod[symbol]))
        }
        scratch = {
            symbol for symbol in called if _keeps_scratch(mod[symbol], programs.get(symbol, ()))
        }
        if not programs and not scratch:
            return mod
        mutator = _Calls(mod, programs, scratch)
        main = mutator.visit_expr(mod["main"])
        mutator.builder_.update_func(mod.get_global_var("main"), main)
        replaced = {*programs, *scratch}
        others = {variable.name_hint for variable in mod.get_global_vars()} - replaced
        clean = relax.transform.DeadCodeElimination(sorted(others))
        return clean(mutator.builder_.finalize())


def pool_users(built: relax.VMExecutable) -> list[str]:
    """The programs of a network that take memory from the pool."""
    return sorted({*re.findall(rf"(\w+){SCRATCH}\b", built.as_text())})


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


def _keeps_scratch(func: tirx.PrimFunc, lifted: Sequence[tirx.Buffer]) -> bool:
    """Whether a program allocates more global memory between its kernels than what is lifted."""
    return statements.allocates((_writing(func, lifted) if lifted else func).body, _GLOBAL)


def _writing(func: tirx.PrimFunc, buffers: Sequence[tirx.Buffer]) -> tirx.PrimFunc:
    """The program with these buffers as its last parameters."""
    root = func.body.block
    left = [buffer for buffer in root.alloc_buffers if buffer not in buffers]
    return statements.program(func, [*func.params, *buffers], list(root.body.seq), left)


@expr_functor.mutator
class _Calls(expr_functor.PyExprMutator):  # type: ignore[misc]
    """Gives calls of programs the results that nobody reads."""

    def __init__(
        self,
        mod: tvm.IRModule,
        lifted: Mapping[str, Sequence[tirx.Buffer]],
        scratch: Collection[str],
    ) -> None:
        super().__init__(mod)
        self._buffers = lifted
        self._programs = {}
        for symbol in sorted({*lifted, *scratch}):
            func = _writing(mod[symbol], lifted[symbol]) if symbol in lifted else mod[symbol]
            ending = SCRATCH if symbol in scratch else "_lifted"
            # a builder gives an equal function the name that it has already
            func = func.with_attr("felix.renamed", ending)
            self._programs[symbol] = self.builder_.add_func(func, f"{symbol}{ending}")

    def visit_call_(self, call: relax.Call) -> Any:
        """One call, after its arguments."""
        visited = self.visit_expr_post_order(call)
        symbol = groups.called(visited)
        if symbol not in self._programs:
            return visited
        if symbol not in self._buffers:
            return relax.call_tir(self._programs[symbol], visited.args[1], visited.ty_args[0])
        results = results_of(visited)
        more = [
            relax.TensorType([int(extent) for extent in buffer.shape], str(buffer.dtype))
            for buffer in self._buffers[symbol]
        ]
        wider = relax.call_tir(self._programs[symbol], visited.args[1], [*results, *more])
        return with_unread_results(self.builder_, wider, len(results))
