"""The groups of a lowered network, and the tasks that they are.

A group is a program that the network calls: a PrimFunc, or several that compute the same. Layers
that differ only in their weights are one group, which is tuned once.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import tvm
from tvm import relax
from tvm.relax import expr_functor

from felix import frontend
from felix.frontend import torch_forms
from felix.frontend.rewriting import operator_name
from felix.task import Task
from felix.tir import grammar
from felix.torch_calls.form import TorchForm


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """A program that the network calls.

    Attributes:
        name: of its first PrimFunc.
        symbols: names of its PrimFuncs in the module, which all compute the same.
        calls: how often a call of the network calls it.
        task: what is tuned; None if Felix cannot tune it.
        reason: why there is no task; None if there is one.
        dtypes: element types of its tensors, each once, inputs first.
        form: the functions of PyTorch that compute the same, or why there are none.
    """

    name: str
    symbols: tuple[str, ...]
    calls: int
    task: Task | None
    reason: str | None
    dtypes: tuple[str, ...]
    form: TorchForm | str

    @property
    def rewriting(self) -> str | None:
        """How it computes in another way than the model; None if as the model, or uncalled."""
        return frontend.rewriting_of(self.symbols[0]) if self.symbols else None


def of(lowered: tvm.IRModule, full: tvm.target.Target, *, allow_tf32: bool = False) -> list[Group]:
    """The groups of a lowered network, most float operations first, then those without a task.

    Args:
        lowered: the network.
        full: what it is lowered for.
        allow_tf32: products of float32 may be computed in TF32, by PyTorch's operators as well.
    """
    n_calls = frontend.calls(lowered)
    read = frontend.model_tasks(lowered, full, allow_tf32=allow_tf32)
    known = torch_forms.read(lowered)

    def group(name: str, symbols: tuple[str, ...], task: Task | None, reason: str | None) -> Group:
        form = _form(symbols, known)
        return Group(
            name=name,
            symbols=symbols,
            calls=sum(n_calls[symbol] for symbol in symbols),
            task=task,
            reason=reason,
            dtypes=dtypes(lowered[symbols[0]]),
            form=form if task is None else _allowing(form, task.allows_tf32),
        )

    tuned = [group(each.task.name, each.functions, each.task, None) for each in read.tasks]
    refused = [group(each, (each,), None, why) for each, why in sorted(read.refused.items())]
    return [*tuned, *refused]


def dtypes(func: tvm.tirx.PrimFunc) -> tuple[str, ...]:
    """Element types of a program's tensors, each once, in the order of its parameters."""
    tensors = (param for param in func.params if isinstance(param, tvm.tirx.Buffer))
    return tuple(dict.fromkeys(grammar.dtype(tensor) for tensor in tensors))


def tasks(groups: Sequence[Group]) -> list[Task]:
    """What is tuned, each task with the number of its calls as its weight."""
    return [group.task for group in groups if group.task is not None]


def _form(symbols: Sequence[str], known: Mapping[str, TorchForm | str]) -> TorchForm | str:
    """The form of any of some programs that compute the same, or why none has one."""
    every = [known.get(symbol, "it is no call of a program") for symbol in symbols]
    return next((each for each in every if not isinstance(each, str)), every[0])


def _allowing(form: TorchForm | str, allow_tf32: bool) -> TorchForm | str:
    if isinstance(form, str) or not allow_tf32:
        return form
    return dataclasses.replace(form, allow_tf32=True)


# Calls of PrimFuncs in `main`.


def calls(main: relax.Function) -> list[tuple[str, relax.Call]]:
    """The calls of PrimFuncs with their names, those of parameters alone among them."""
    found: list[tuple[str, relax.Call]] = []

    def visit(expression: relax.Expr) -> None:
        symbol = called(expression)
        if symbol is not None:
            found.append((symbol, expression))

    relax.analysis.post_order_visit(main, visit)
    return found


def counts(lowered: tvm.IRModule) -> collections.Counter[str]:
    """How often `main` calls each PrimFunc, by name, those of parameters alone among them."""
    return collections.Counter(symbol for symbol, _ in calls(lowered["main"]))


def called(expression: relax.Expr) -> str | None:
    """Name of the PrimFunc that an expression calls; None if it calls none."""
    is_call = operator_name(expression) in ("call_tir", "call_tir_inplace")
    return str(expression.args[0].name_hint) if is_call else None


#: What a call becomes, whose arguments are rewritten: of a builder, the PrimFunc's name, the call.
Rewriting: TypeAlias = Callable[[relax.BlockBuilder, str, relax.Call], Any]


def with_calls(mod: tvm.IRModule, rewriting: Rewriting, roots: Iterable[str]) -> tvm.IRModule:
    """The module with the calls of `main` rewritten, and without what `roots` do not need."""
    mutator = _Calls(mod, rewriting)
    main = mutator.visit_expr(mod["main"])
    mutator.builder_.update_func(mod.get_global_var("main"), main)
    return relax.transform.DeadCodeElimination(list(roots))(mutator.builder_.finalize())


@expr_functor.mutator
class _Calls(expr_functor.PyExprMutator):  # type: ignore[misc]
    """Rewrites calls of PrimFuncs."""

    def __init__(self, mod: tvm.IRModule, rewriting: Rewriting) -> None:
        super().__init__(mod)
        self._rewriting = rewriting

    def visit_call_(self, call: relax.Call) -> Any:
        """One call, after its arguments."""
        visited = self.visit_expr_post_order(call)
        symbol = called(visited)
        return visited if symbol is None else self._rewriting(self.builder_, symbol, visited)
