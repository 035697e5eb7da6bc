"""Contenders of a group timed side by side, each as the network runs it.

A contender runs in a network of one call, built as the whole one is. All get the same inputs,
which are cold (`runner.calls`), and take turns. On a CPU PyTorch has as many threads as the
target has cores. A contender that is wrong (`excluded`) is not timed and does not ship. What was
timed is stored beside the known results; equal contenders of an equal group on an equal device are
not timed again.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import json
import math
import statistics
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import torch
import tvm
from tvm import relax

from felix.database import store
from felix.database.outcome import KnownResult
from felix.frontend.rewriting import with_function
from felix.measure import locks
from felix.network import assembly, executable, groups
from felix.network.contenders import excluded, shipping
from felix.network.contenders.shipping import Compared, Contender, Shipped
from felix.runner.calls import cpu_calls, cuda_calls
from felix.task import Task
from felix.tir import cost
from felix.torch_calls.form import TorchForm
from felix.tuning import results

# Timing networks side by side: the same cold inputs, in turns, and nobody else measures.

_Name = TypeVar("_Name", bound=Hashable)

#: Turns of each network, and timed calls in a turn.
TURNS, BURST = 3, 8
#: A program so many times as slow as another one, by tuning or by a first turn, is not timed
#: again.
MAX_RATIO = 2.0


def median_us(
    mains: Mapping[_Name, Callable[..., Any]],
    inputs: Sequence[torch.Tensor],
    full: tvm.target.Target,
) -> dict[_Name, float]:
    """The median latency of each network, called with these inputs on a target's device, in us."""
    calls: dict[_Name, Callable[[], object]] = {
        name: functools.partial(main, *inputs) for name, main in mains.items()
    }
    if full.kind.name == "cuda":
        latencies_us = cuda_calls.in_turns_us(calls, TURNS, BURST, MAX_RATIO)
    else:
        flushed = [tvm.runtime.from_dlpack(each) for each in inputs]
        latencies_us = cpu_calls.in_turns_us(calls, flushed, TURNS, BURST, MAX_RATIO)
    return {name: statistics.median(each) for name, each in latencies_us.items()}


def n_threads(full: tvm.target.Target) -> int:
    """Threads of PyTorch: the target's cores, whose number programs are measured with."""
    return int(full.attrs.get("num-cores", torch.get_num_threads()))


@contextlib.contextmanager
def undisturbed(full: tvm.target.Target) -> Iterator[None]:
    """Until the block ends PyTorch has `n_threads`, and nobody else measures on the GPU."""
    earlier = torch.get_num_threads()
    torch.set_num_threads(n_threads(full))
    try:
        with locks.alone_on(full.kind.name):
            yield
    finally:
        torch.set_num_threads(earlier)


#: Groups whose contenders are compiled side by side: enough for the threads that do it.
N_TOGETHER = 16
#: Steps of a program that may be the fastest on a CPU without a schedule: 0.1 s of one thread.
_MOST_STEPS = 1e8
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

    Attributes:
        store: `known`.
        n_timed: groups that were timed, and not known.
    """

    def __init__(self, network: Programs, known: store.Store | None) -> None:
        self.store = known
        self.n_timed = 0
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
                yield group, outcome, compared or shipping.LATE
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
            contenders = _text(group, outcome)
            self.store.add_finding(group.task, contenders, dataclasses.asdict(compared))
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
        stored = self.store.find_finding(group.task, _text(group, outcome))
        return None if stored is None else Compared.from_json(stored)

    def _timed(self, group: groups.Group, outcome: KnownResult | None, built: _Built) -> Compared:
        """The latencies of those contenders that are right."""
        task = group.task
        assert task is not None  # else nothing is compared
        inputs = excluded.inputs(task)
        mains = {name: executable.loaded(each, task.target) for name, each in built.items()}
        with undisturbed(task.target):
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
            latencies_us = median_us(right, inputs, task.target)
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
            "threads": n_threads(group.task.target),
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
    return default_us <= MAX_RATIO * tuned_us


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
