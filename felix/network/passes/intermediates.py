"""Buffers between the kernels of one program become intermediate values of the network.

TVM's host code takes the memory of such a buffer from a pool of the calling thread, which frees it
when another program needs more, or the thread ends. A captured CUDA graph would go on writing
there. Here the buffer becomes one more result of its program, which nobody reads: its memory is
planned and made with that of all intermediate values (`memory`).

Programs that keep such a buffer, because they allocate it where the pass does not reach or with an
extent that it does not know (TVM's sort and scan), get names that end with `SCRATCH`: their calls
cannot be captured.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import tvm
from tvm import relax, s_tir, tirx
from tvm.ir.expr import TensorLoad
from tvm.s_tir import stmt as s_stmt
from tvm_ffi import structural

from felix.frontend.rewriting import tensor_type
from felix.network import groups
from felix.tir import grammar

# Programs as the statements of their root block.


def uses(statement: Any) -> tuple[set[Any], set[Any]]:
    """The buffers that a statement reads and writes, without those that it allocates."""
    reads: set[Any] = set()
    writes: set[Any] = set()
    inner: set[Any] = set()

    def block(node: Any) -> None:
        # Intrinsics access buffers by pointers and windows: the block says which ones.
        inner.update(node.alloc_buffers, (window.buffer for window in node.match_buffers))
        reads.update(region.source for region in node.reads)
        writes.update(region.source for region in node.writes)

    rules = (
        (TensorLoad, lambda node: reads.add(node.source)),
        (tirx.BufferStore, lambda node: writes.add(node.buffer)),
        (s_stmt.SBlock, block),
    )
    structural.structural_walk(statement, rules)
    return reads - inner, writes - inner


def allocates(statement: Any, scopes: Sequence[str]) -> bool:
    """Whether a statement allocates a buffer in one of these scopes."""
    blocks = grammar.nodes(statement, s_stmt.SBlock)
    found = [buffer for block in blocks for buffer in block.alloc_buffers]
    found += [each.buffer for each in grammar.nodes(statement, tirx.AllocBuffer)]
    return any(buffer.scope() in scopes for buffer in found)


def is_plain(buffer: Any) -> bool:
    """Whether a buffer's elements lie one after the other from its beginning."""
    offset = buffer.elem_offset
    begins = offset is None or (isinstance(offset, tirx.IntImm) and int(offset) == 0)
    return begins and not list(buffer.strides or [])


def program(
    func: tirx.PrimFunc, buffers: Sequence[Any], statements: Sequence[Any], local: Sequence[Any]
) -> tirx.PrimFunc:
    """Some statements of a program as a program that takes these buffers."""
    body = statements[0] if len(statements) == 1 else tirx.SeqStmt(list(statements))
    root = func.body.block
    block = s_tir.SBlock(
        [], [], [], root.name_hint, body, alloc_buffers=list(local), annotations=root.annotations
    )
    made = tirx.PrimFunc(list(buffers), s_tir.SBlockRealize([], True, block), attrs=func.attrs)
    return s_tir.renew_defs(made)


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
        replaced = {*programs, *scratch}
        others = {variable.name_hint for variable in mod.get_global_vars()} - replaced
        return groups.with_calls(mod, _rewriting(mod, programs, scratch), sorted(others))


def _rewriting(
    mod: tvm.IRModule, lifted: Mapping[str, Sequence[tirx.Buffer]], scratch: Collection[str]
) -> groups.Rewriting:
    """Gives calls of programs the results that nobody reads."""
    variables: dict[str, Any] = {}

    def rewritten(builder: relax.BlockBuilder, symbol: str, call: relax.Call) -> Any:
        if symbol not in lifted and symbol not in scratch:
            return call
        buffers = lifted.get(symbol, ())
        if symbol not in variables:
            func = _writing(mod[symbol], buffers) if buffers else mod[symbol]
            ending = SCRATCH if symbol in scratch else "_lifted"
            # a builder gives an equal function the name that it has already
            func = func.with_attr("felix.renamed", ending)
            variables[symbol] = builder.add_func(func, f"{symbol}{ending}")
        if not buffers:
            return relax.call_tir(variables[symbol], call.args[1], call.ty_args[0])
        results = results_of(call)
        kinds = [*results, *map(tensor_type, buffers)]
        wider = relax.call_tir(variables[symbol], call.args[1], kinds)
        return with_unread_results(builder, wider, len(results))

    return rewritten


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
    for symbol, call in groups.calls(main):
        is_call = call.op.name == _CALL and len(call.args) == 2
        plain[symbol] = plain.get(symbol, True) and is_call
    return [symbol for symbol, each in plain.items() if each]


def _between_kernels(func: tirx.PrimFunc) -> list[tirx.Buffer]:
    """The buffers in global memory that several statements of the program use."""
    root = func.body.block if isinstance(func.body, s_stmt.SBlockRealize) else None
    if root is None or not isinstance(root.body, tirx.SeqStmt):
        return []
    used_by = [set.union(*uses(part)) for part in root.body.seq]
    return [
        buffer
        for buffer in root.alloc_buffers
        if buffer.scope() in _GLOBAL
        and is_plain(buffer)
        and sum(buffer in used for used in used_by) > 1
    ]


def _keeps_scratch(func: tirx.PrimFunc, lifted: Sequence[tirx.Buffer]) -> bool:
    """Whether a program allocates more global memory between its kernels than what is lifted."""
    return allocates((_writing(func, lifted) if lifted else func).body, _GLOBAL)


def _writing(func: tirx.PrimFunc, buffers: Sequence[tirx.Buffer]) -> tirx.PrimFunc:
    """The program with these buffers as its last parameters."""
    root = func.body.block
    left = [buffer for buffer in root.alloc_buffers if buffer not in buffers]
    return program(func, [*func.params, *buffers], list(root.body.seq), left)
