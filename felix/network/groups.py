"""The groups of a lowered network, and the tasks that they are.

A group is a program that the network calls: a PrimFunc, or several that compute the same. Layers
that differ only in their weights are one group, which is tuned once.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Mapping, Sequence

import tvm
from tvm import relax

from felix import frontend
from felix.frontend import torch_forms
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
    counts = frontend.calls(lowered)
    read = frontend.model_tasks(lowered, full, allow_tf32=allow_tf32)
    known = torch_forms.read(lowered)
    tuned = [
        Group(
            name=each.task.name,
            symbols=each.functions,
            calls=sum(counts[symbol] for symbol in each.functions),
            task=each.task,
            reason=None,
            dtypes=dtypes(lowered[each.functions[0]]),
            form=_allowing(_form(each.functions, known), each.task.allows_tf32),
        )
        for each in read.tasks
    ]
    refused = [
        Group(
            name=symbol,
            symbols=(symbol,),
            calls=counts[symbol],
            task=None,
            reason=reason,
            dtypes=dtypes(lowered[symbol]),
            form=_form([symbol], known),
        )
        for symbol, reason in sorted(read.refused.items())
    ]
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


def calls(lowered: tvm.IRModule) -> collections.Counter[str]:
    """How often `main` calls each PrimFunc, by name, those of parameters alone among them."""
    counts: collections.Counter[str] = collections.Counter()

    def visit(expression: relax.Expr) -> None:
        symbol = called(expression)
        if symbol is not None:
            counts[symbol] += 1

    relax.analysis.post_order_visit(lowered["main"], visit)
    return counts


def called(expression: relax.Expr) -> str | None:
    """Name of the PrimFunc that an expression calls; None if it calls none."""
    if not isinstance(expression, relax.Call) or not isinstance(expression.op, tvm.ir.Op):
        return None
    if expression.op.name not in ("relax.call_tir", "relax.call_tir_inplace"):
        return None
    return str(expression.args[0].name_hint)
