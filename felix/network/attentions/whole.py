"""Attentions run by their programs or, as a whole, by PyTorch's operator: what is faster.

A group is a program, and no schedule computes the two products and the softmax of an attention in
one kernel. So once it is known what each group runs, every attention (`finding`) is timed as a
network of those programs beside a network of PyTorch's operator. Equal ones are timed once, and
what was timed is stored beside the known results.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import tvm

from felix.builder import task_program
from felix.database import store
from felix.network import assembly, executable, groups, imported
from felix.network.attentions import finding, rewiring
from felix.network.attentions.finding import Attention
from felix.network.contenders import contest, excluded, shipping, timing
from felix.network.contenders.shipping import Contender, Shipped
from felix.runner.checking import reference
from felix.task import Task
from felix.torch_calls.form import TorchForm
from felix.workloads import torch_forms

_SEED = 0
_NAMES = {Contender.FELIX: "its programs", Contender.PYTORCH: "PyTorch"}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Whole:
    """Equal attentions of a network.

    Attributes:
        calls: how many there are.
        groups: names of the groups whose programs compute one.
        forms: what PyTorch calls for one.
        contender: PYTORCH if its operator runs them, FELIX if their programs do.
        latencies_us: of one, by its programs and by PyTorch, as far as they were timed.
        reason: why this one ships, in a line.
        wrong: contenders that must not ship, with what is wrong with them.
    """

    calls: int
    groups: tuple[str, ...]
    forms: tuple[TorchForm, ...]
    contender: Contender
    latencies_us: Mapping[Contender, float]
    reason: str
    wrong: Mapping[Contender, str]

    @property
    def ships(self) -> bool:
        """Whether PyTorch's operator takes the place of the programs."""
        return self.contender is Contender.PYTORCH


@dataclasses.dataclass(frozen=True, slots=True)
class Chosen:
    """What runs once attentions are compared.

    Attributes:
        lowered: the network, with PyTorch's operator where it ships.
        shipped: what the groups run, with the calls that are left of them.
        wholes: the attentions that were compared.
        n_timed: of how many that was not known.
    """

    lowered: tvm.IRModule
    shipped: Sequence[Shipped]
    wholes: Sequence[Whole]
    n_timed: int


def choose(
    network: contest.Programs, shipped: Sequence[Shipped], known: store.Store | None
) -> Chosen:
    """Compare every attention, and put PyTorch's operator where it is the fastest.

    Args:
        network: the lowered network.
        shipped: what each group runs otherwise.
        known: where comparisons are stored; None if PyTorch is no contender.

    Raises:
        MeasureError: a program cannot be compiled here.
        TuningError: neither is right.
        RecordError: the known results cannot be used.
    """
    found = [] if known is None else finding.find(network.lowered)
    equal: dict[str, list[_Comparison]] = {}
    for each in found:
        comparison = _Comparison(network, each, shipped)
        if comparison.is_possible:
            equal.setdefault(comparison.text, []).append(comparison)
    wholes, replaced, n_timed = [], [], 0
    for text, every in equal.items():
        assert known is not None  # else nothing was looked for
        (stored,) = known.find_findings([(every[0].task, text)])
        if stored is None:
            stored = every[0].timed()
            known.add_findings([(every[0].task, text, stored)])
            n_timed += 1
        whole = _whole(every, stored)
        wholes.append(whole)
        replaced += [each.attention for each in every if whole.ships]
    if not replaced:
        return Chosen(network.lowered, shipped, wholes, n_timed)
    lowered = rewiring.with_operators(network.lowered, replaced)
    return Chosen(lowered, _left(shipped, lowered), wholes, n_timed)


def n_kinds(lowered: tvm.IRModule) -> int:
    """How many different attentions of a lowered network are compared."""
    forms = (tuple(step.form.key for step in each.steps) for each in finding.find(lowered))
    return len(set(forms))


def _whole(every: Sequence[_Comparison], stored: Mapping[str, Any]) -> Whole:
    compared = shipping.Compared.from_json(stored)
    latencies_us, wrong = compared.latencies_us, compared.wrong
    contender = shipping.fastest(latencies_us)
    best_us = latencies_us[contender]
    others = [
        f"{_NAMES[name]}: {us / best_us:.2f} times as long"
        for name, us in latencies_us.items()
        if name is not contender
    ]
    return Whole(
        calls=len(every),
        groups=every[0].names,
        forms=every[0].forms,
        contender=contender,
        latencies_us=latencies_us,
        reason="; ".join([*others, *wrong.values()]),
        wrong=wrong,
    )


def _left(shipped: Sequence[Shipped], lowered: tvm.IRModule) -> list[Shipped]:
    """What ships, with the calls and PrimFuncs that a network still has."""
    counts = groups.counts(lowered)
    left = []
    for each in shipped:
        symbols = tuple(symbol for symbol in each.group.symbols if counts[symbol])
        group = dataclasses.replace(
            each.group, symbols=symbols, calls=sum(counts[symbol] for symbol in symbols)
        )
        left.append(dataclasses.replace(each, group=group))
    return left


class _Comparison:
    """One attention by its programs and by PyTorch."""

    def __init__(
        self, network: contest.Programs, found: Attention, shipped: Sequence[Shipped]
    ) -> None:
        self._target = network.target
        self._separate = rewiring.alone(network.lowered, found)
        counts = groups.counts(self._separate)
        self._shipped = [
            dataclasses.replace(each, group=dataclasses.replace(each.group, symbols=symbols))
            for each in shipped
            if (symbols := tuple(s for s in each.group.symbols if counts[s]))
        ]
        self._tasks = [each.group.task for each in self._shipped if each.group.task is not None]
        self._allow_tf32 = any(task.allows_tf32 for task in self._tasks)
        steps = tuple(
            dataclasses.replace(
                step, form=dataclasses.replace(step.form, allow_tf32=self._allow_tf32)
            )
            for step in found.steps
        )
        self.attention = dataclasses.replace(found, steps=steps)

    @property
    def is_possible(self) -> bool:
        """Whether it can be compared: stored with a task, and of inputs that may be random."""
        dtypes = {argument.dtype for argument in self._arguments}
        return bool(self._tasks) and all(
            dtype == "bool" or reference.is_float(dtype) for dtype in dtypes
        )

    @property
    def task(self) -> Task:
        """The task with which the comparison is stored."""
        return self._tasks[0]

    @property
    def names(self) -> tuple[str, ...]:
        """The groups whose programs compute it."""
        return tuple(each.group.name for each in self._shipped)

    @property
    def forms(self) -> tuple[TorchForm, ...]:
        """What PyTorch calls."""
        return tuple(step.form for step in self.attention.steps)

    @property
    def text(self) -> str:
        """Identifies what is compared: other programs are another text."""
        runs = [
            (str(each.contender), "" if each.outcome is None else each.outcome.program)
            for each in self._shipped
        ]
        separate = f"{self._separate.script()}{runs}"
        return json.dumps(
            {
                "attention": [form.to_json() for form in self.forms],
                "separate": hashlib.sha256(separate.encode()).hexdigest(),
                "torch": torch.__version__,
                "threads": timing.n_threads(self._target),
            },
            sort_keys=True,
        )

    @property
    def _arguments(self) -> list[reference.Argument]:
        return [
            reference.Argument(
                str(each.name),
                str(each.ty.dtype),
                tuple(map(int, each.ty.shape)),
                is_input=True,
                is_output=False,
            )
            for each in self._separate["main"].params
        ]

    def timed(self) -> dict[str, Any]:
        """Latencies of those that are right, and what is wrong with the other one.

        Raises:
            TuningError: both are wrong.
        """
        mods = [
            assembly.assemble(self._separate, contest.runs(self._shipped)),
            rewiring.operator(self._separate, self.attention),
        ]
        built = executable.compile_networks(mods, self._target)
        drawn = self._drawn()
        place = imported.device_of(self._target)
        inputs = [executable.as_stored(each.to(place)) for each in drawn]
        pair = (Contender.FELIX, Contender.PYTORCH)
        mains = {
            name: executable.loaded(each, self._target)
            for name, each in zip(pair, built, strict=True)
        }
        check = excluded.Check(
            inputs,
            lambda: (inputs, self._expected(drawn)),
            allow_tf32=self._allow_tf32,
            names=_NAMES,
        )
        with timing.undisturbed(self._target):
            wrong = check.wrong(mains)
            excluded.check_left(f"of an attention ({', '.join(self.names)})", mains, wrong)
            right = {name: main for name, main in mains.items() if name not in wrong}
            return {"latencies_us": timing.median_us(right, inputs, self._target), "wrong": wrong}

    def _drawn(self) -> list[torch.Tensor]:
        arrays = reference.inputs(self._arguments, _SEED, positive=False)
        return [torch_forms.tensor(array) for array in arrays]

    def _expected(self, drawn: Sequence[torch.Tensor]) -> torch.Tensor:
        """The result by the unscheduled programs on the CPU."""
        host = task_program.cpu_target(self._target)
        main = executable.loaded(executable.compile_network(self._separate, host), host)
        return executable.as_tensor(main(*map(executable.as_stored, drawn)))
