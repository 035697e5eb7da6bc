"""Contenders of a group timed side by side, each as the network runs it.

A contender runs in a network of one call, built as the whole one is. All get the same inputs,
which are cold (`runner.calls`), and take turns. On a CPU PyTorch has as many threads as the
target has cores. A contender that is wrong (`excluded`) is not timed and does not ship. What was
timed is stored beside the known results; equal contenders of an equal group on an equal device are
not timed again. Where PyTorch's operators alone (`alone`) took much more or less than programs
that were measured, nothing is timed in turns.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import time
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol, TypeAlias

import torch
import tvm
from tvm import relax

from felix.database import store
from felix.database.outcome import KnownResult
from felix.frontend.rewriting import with_function
from felix.network import assembly, executable, groups
from felix.network.contenders import excluded, shipping, timing
from felix.network.contenders.shipping import Compared, Contender, Shipped
from felix.task import Task
from felix.tir import cost, grammar
from felix.torch_calls.form import TorchForm
from felix.tuning import results

#: Groups whose contenders are compiled side by side: enough for the threads that do it.
N_TOGETHER = 16
#: PyTorch's operators alone and a measured program so far apart are not timed in turns. Both are
#: timed with cold caches; on a CPU in two processes, which may differ more.
CLEAR = {"cuda": 1.15, "llvm": 1.5}
#: Steps of a program that may be the fastest on a CPU without a schedule: 0.1 s of one thread.
_MOST_STEPS = 1e8
#: What a step takes at least, in us: one of eight elements of a vector, or a term of a sum, whose
#: loop has no vectors.
_LEAST_STEP_US, _LEAST_TERM_US = 5e-5, 3e-4
#: Float operations to a byte of programs whose data are used again and again.
_FLOPS_OF_PRODUCT = 8.0
#: Latencies in us by the keys of tasks, then by contender.
Alone: TypeAlias = Mapping[str, Mapping[Contender, float]]
_Built = dict[Contender, relax.VMExecutable]


def program(
    contender: Contender, group: groups.Group, outcome: KnownResult | None
) -> assembly.Runs:
    """What a group runs if a contender ships; None: as TVM schedules it when it is built."""
    if contender is Contender.PYTORCH:
        assert not isinstance(group.form, str)  # else PyTorch is no contender
        return group.form
    if contender is Contender.FELIX:
        assert outcome is not None  # it has Felix's latency
        return outcome.read_program()
    task = group.task
    if task is None or task.target.kind.name != "cuda" or outcome is None:
        return None
    return None if outcome.default_us is None else results.unscheduled(task).mod


def runs(shipped: Sequence[Shipped]) -> list[tuple[groups.Group, assembly.Runs]]:
    """The programs that ship, of the groups that the network calls."""
    return [
        (each.group, program(each.contender, each.group, each.outcome))
        for each in shipped
        if each.group.symbols
    ]


class Programs(Protocol):
    """Where groups come from: `lowered` has their PrimFuncs, which `main` calls."""

    @property
    def lowered(self) -> tvm.IRModule: ...
    @property
    def target(self) -> tvm.target.Target: ...


class Contest:
    """Compares the contenders of groups.

    Args:
        network: whose groups they are.
        known: where comparisons are stored; None if PyTorch is no contender.
        alone_us: latencies of contenders alone, by the keys of tasks.

    Attributes:
        store: `known`.
        n_timed: groups that were timed, and not known.
        has_clear: whether PyTorch's operators alone were enough of a group, of which nothing was
            checked.
    """

    def __init__(
        self,
        network: Programs,
        known: store.Store | None,
        alone_us: Alone = types.MappingProxyType({}),
    ) -> None:
        self.store = known
        self.n_timed, self.has_clear = 0, False
        self._alone_us = alone_us
        self._network = network
        self._built: dict[str, _Built] = {}

    def compare(
        self,
        every: Sequence[tuple[groups.Group, KnownResult | None]],
        left_s: Callable[[], float] = lambda: math.inf,
    ) -> Iterator[tuple[groups.Group, KnownResult | None, Compared]]:
        """`held` of groups and what tuning gave, a few at a time: their contenders are compiled
        side by side, timed one after the other, and dropped.

        Args:
            every: groups, those first that should be compared if there is no time for all.
            left_s: seconds that are left.

        Raises:
            MeasureError: a contender cannot be compiled here.
            TuningError: no contender of a group is right.
            RecordError: the known results cannot be used.
        """
        longest_s = 0.0
        for first in range(0, len(every), N_TOGETHER):
            some, begin = every[first : first + N_TOGETHER], time.perf_counter()
            has_time = left_s() > longest_s
            if has_time:
                self._prepare(some)
            for group, outcome in some:
                compared = self.known(group, outcome)
                if compared is None and has_time and left_s() > 0.0:
                    compared = self.held(group, outcome)
                yield group, outcome, compared or self.alone(group) or shipping.LATE
            longest_s = max(longest_s, time.perf_counter() - begin)

    def _prepare(self, some: Sequence[tuple[groups.Group, KnownResult | None]]) -> None:
        """Compile what has to be timed of groups side by side."""
        unknown = {
            group.symbols[0]: (group, outcome)
            for group, outcome in some
            if self.known(group, outcome) is None
        }
        tuned = [(g, known) for g, known in unknown.values() if known is not None]
        assembly.compile_kernels(
            [(g, known.read_program()) for g, known in tuned if known.program is not None]
        )
        mods = {
            symbol: _assembled(self._network, group, outcome)
            for symbol, (group, outcome) in unknown.items()
        }
        flat = [mod for each in mods.values() for mod in each.values()]
        built = iter(executable.compile_networks(flat, self._network.target) if flat else ())
        for symbol, each in mods.items():
            self._built[symbol] = {contender: next(built) for contender in each}

    def held(self, group: groups.Group, outcome: KnownResult | None) -> Compared:
        """The latencies of a group's contenders, side by side, or why PyTorch is none.

        Raises:
            MeasureError: a contender cannot be compiled here.
            TuningError: no contender is right.
            RecordError: the known results cannot be used.
        """
        compared = self.known(group, outcome)
        if compared is None:
            assert self.store is not None and group.task is not None  # else it is known
            self.n_timed += 1
            symbol = group.symbols[0]
            if symbol not in self._built:
                self._prepare([(group, outcome)])
            compared = self._timed(group, outcome, self._built.pop(symbol))
            found = dataclasses.asdict(compared)
            self.store.add_findings([(group.task, _text(group, outcome), found)])
        return compared

    def known(self, group: groups.Group, outcome: KnownResult | None) -> Compared | None:
        """What is known without timing; None if the contenders would have to be timed.

        Raises:
            RecordError: the known results cannot be used.
        """
        if self.store is None:
            return Compared(latencies_us={}, without_pytorch="it was not asked for")
        if isinstance(group.form, str):
            return Compared(latencies_us={}, without_pytorch=group.form)
        if group.task is None:
            return Compared(latencies_us={}, without_pytorch="the group is no task: not compared")
        (stored,) = self.store.find_findings([(group.task, _text(group, outcome))])
        if stored is not None:
            return Compared.from_json(stored)
        if not self._is_clear(group.task, outcome):
            return None
        self.has_clear = True
        return self.alone(group)

    def in_turns(self) -> Contest:
        """The same, which times every group's contenders in turns."""
        return Contest(self._network, self.store)

    def alone(self, group: groups.Group) -> Compared | None:
        """What contenders took alone; None if PyTorch's operators were not timed."""
        alone_us = {} if group.task is None else self._alone_us.get(group.task.key, {})
        if Contender.PYTORCH not in alone_us:
            return None
        return Compared(latencies_us=alone_us, without_pytorch=None)

    def _is_clear(self, task: Task, outcome: KnownResult | None) -> bool:
        """Whether what is measured says who is the fastest: PyTorch where nothing else is, and
        TVM's program cannot be."""
        alone_us = self._alone_us.get(task.key, {})
        pytorch_us = alone_us.get(Contender.PYTORCH)
        if pytorch_us is None:
            return False
        others_us = [] if outcome is None else [outcome.tuned_us, outcome.default_us]
        others_us.append(alone_us.get(Contender.TVM))
        measured_us = [each for each in others_us if each is not None]
        if not measured_us:
            return least_tvm_us(task) > pytorch_us
        ratio = min(measured_us) / pytorch_us
        return max(ratio, 1.0 / ratio) >= CLEAR[task.target.kind.name]

    def _timed(self, group: groups.Group, outcome: KnownResult | None, built: _Built) -> Compared:
        """The latencies of those contenders that are right."""
        task = group.task
        assert task is not None  # else nothing is compared
        inputs = excluded.inputs(task)
        mains = {name: executable.loaded(each, task.target) for name, each in built.items()}
        with timing.undisturbed(task.target):
            check = excluded.of_task(task, inputs)
            wrong = check.wrong(mains)
            is_needed = Contender.FELIX in wrong or set(mains) <= set(wrong)
            if is_needed and Contender.TVM not in mains:
                # TVM's program, which was not hopeful until others were wrong
                (mod,) = _network_of(self._network, group, outcome, [Contender.TVM]).values()
                default = executable.compile_network(mod, self._network.target)
                mains[Contender.TVM] = executable.loaded(default, task.target)
                wrong |= check.wrong({Contender.TVM: mains[Contender.TVM]})
            excluded.check_left(f"of the group {group.name}", mains, wrong)
            right = {name: main for name, main in mains.items() if name not in wrong}
            latencies_us = timing.median_us(right, inputs, task.target)
        return Compared(
            latencies_us=latencies_us, without_pytorch=wrong.get(Contender.PYTORCH), wrong=wrong
        )


def _text(group: groups.Group, outcome: KnownResult | None) -> str:
    """Identifies contenders: another program, form or version is another text."""
    assert isinstance(group.form, TorchForm) and group.task is not None
    text = "" if outcome is None or outcome.program is None else outcome.program
    return json.dumps(
        {
            "felix": hashlib.sha256(text.encode()).hexdigest(),
            "tvm": _is_hopeful(group.task, outcome),
            "form": group.form.key,
            "torch": torch.__version__,
            "wrong": "by the reference",
            "threads": timing.n_threads(group.task.target),
        },
        sort_keys=True,
    )


def _is_hopeful(task: Task, outcome: KnownResult | None) -> bool:
    """Whether TVM's program may be the fastest, by what tuning measured.

    One that was not timed beside Felix's did not run, or not in time: on a CPU, where it has one
    thread, a large one takes minutes. Where tuning timed neither such a one is not run either.
    """
    tuned_us = None if outcome is None else outcome.tuned_us
    default_us = None if outcome is None else outcome.default_us
    if tuned_us is None:
        is_small = task.target.kind.name != "llvm" or cost.executions(task.func) <= _MOST_STEPS
        return default_us is not None or is_small
    if default_us is None:
        return False
    return default_us <= timing.MAX_RATIO * tuned_us


def least_tvm_us(task: Task) -> float:
    """What TVM's program takes at least: on a CPU its steps in one thread; on a GPU too much for
    products, which its rules do not tile well."""
    if task.target.kind.name == "llvm":
        has_sums = any(block.init is not None for block in grammar.blocks(task.func.body))
        return cost.executions(task.func) * (_LEAST_TERM_US if has_sums else _LEAST_STEP_US)
    return math.inf if task.flops > _FLOPS_OF_PRODUCT * task.min_bytes else 0.0


def _assembled(
    network: Programs, group: groups.Group, outcome: KnownResult | None
) -> dict[Contender, tvm.IRModule]:
    """A network of one call for each contender; PyTorch is the last one."""
    assert group.task is not None  # else nothing is compared
    chosen = [Contender.TVM] if _is_hopeful(group.task, outcome) else []
    if outcome is not None and outcome.program is not None:
        chosen.insert(0, Contender.FELIX)
    return _network_of(network, group, outcome, [*chosen, Contender.PYTORCH])


def _network_of(
    network: Programs,
    group: groups.Group,
    outcome: KnownResult | None,
    contenders: Sequence[Contender],
) -> dict[Contender, tvm.IRModule]:
    """A network of one call for each of some contenders."""
    alone = _alone(network.lowered, group.symbols[0])
    one = dataclasses.replace(group, symbols=group.symbols[:1])
    return {
        contender: assembly.assemble(alone, [(one, program(contender, group, outcome))])
        for contender in contenders
    }


def _alone(lowered: tvm.IRModule, symbol: str) -> tvm.IRModule:
    """A network that is one call of a program."""
    call = next(call for called, call in groups.calls(lowered["main"]) if called == symbol)
    variable, arguments = call.args[:2]
    operands = [relax.Var(f"x{number}", each.ty) for number, each in enumerate(arguments.fields)]
    alone = relax.Call(call.op, [variable, relax.Tuple(operands)], None, call.ty_args)
    program = tvm.IRModule({variable: lowered[variable]})
    return with_function(program, operands, lambda builder: alone)
