"""What groups take inside a network that runs: with the caches as the call before has left them.

Groups are compared alone, with cold caches. Where the whole network is slower than the model in
PyTorch, two networks of it run in turns: one of what was chosen, one in which PyTorch's operators
run every group that they can. What each call of a group takes in both says which group goes back.
"""

from __future__ import annotations

import collections
import dataclasses
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import tvm

from felix.network import assembly, executable, groups
from felix.network.contenders import contest, shipping
from felix.network.contenders.shipping import Contender
from felix.torch_calls.form import TorchForm

#: Calls of each network, after two that are not counted, and seconds after which none follows.
_REPEATS, _WARM_UP, _BUDGET_S = 15, 2, 2.0


def moved_back(
    lowered: tvm.IRModule,
    shipped: Sequence[shipping.Shipped],
    ours: executable.Executable,
    build: Callable[[Sequence[shipping.Shipped]], executable.Executable],
    inputs: Sequence[torch.Tensor],
) -> list[shipping.Shipped] | None:
    """What groups run if those that take longer in the network than PyTorch's operators go back to
    them; None if there are none.

    Args:
        lowered: the network.
        shipped: what its groups run.
        ours: it, built.
        build: builds the network of what groups run.
        inputs: of a call.
    """
    of_pytorch = [_moved(each) if _may_move(each) else each for each in shipped]
    if of_pytorch == list(shipped):
        return None
    is_gpu = any(each.is_cuda for each in inputs)
    sides = (
        (ours, _Steps(lowered, shipped, is_gpu=is_gpu)),
        (build(of_pytorch), _Steps(lowered, of_pytorch, is_gpu=is_gpu)),
    )
    ready = [executable.as_stored(each) for each in inputs]
    until_s = time.monotonic() + _BUDGET_S
    for turn in range(_WARM_UP + _REPEATS):
        for built, steps in sides:
            steps.begin(is_counted=turn >= _WARM_UP)
            built.run(ready, instrument=steps)
        if time.monotonic() > until_s and turn >= _WARM_UP:
            break
    ours_us, theirs_us = (steps.latencies_us() for _, steps in sides)
    moved = [_faster(each, ours_us, theirs_us) for each in shipped]
    return None if moved == list(shipped) else moved


def _may_move(each: shipping.Shipped) -> bool:
    """Whether PyTorch has operators for a group that runs something else."""
    is_theirs = each.contender is Contender.PYTORCH or Contender.PYTORCH in each.wrong
    return isinstance(each.group.form, TorchForm) and not is_theirs and bool(each.group.symbols)


def _moved(each: shipping.Shipped, reason: str = "") -> shipping.Shipped:
    return dataclasses.replace(each, contender=Contender.PYTORCH, reason=reason)


def _faster(
    each: shipping.Shipped, ours_us: Mapping[str, float], theirs_us: Mapping[str, float]
) -> shipping.Shipped:
    name = each.group.name
    if not _may_move(each) or name not in ours_us or name not in theirs_us:
        return each
    if ours_us[name] <= theirs_us[name]:
        return each
    ratio = ours_us[name] / theirs_us[name]
    return _moved(each, f"in the network {each.contender} takes {ratio:.2f} times as long")


class _Steps:
    """Times the calls of groups; what `VirtualMachine.set_instrument` wants."""

    def __init__(
        self, lowered: tvm.IRModule, shipped: Sequence[shipping.Shipped], *, is_gpu: bool
    ) -> None:
        self._is_gpu = is_gpu
        names = {
            symbol: (each.group.name, _function_of(each, symbol))
            for each in shipped
            for symbol in each.group.symbols
        }
        self._expected = [
            names[symbol] for symbol, _ in groups.calls(lowered["main"]) if symbol in names
        ]
        self._functions = {function for _, function in self._expected}
        self._runs: list[dict[str, float]] = []

    def begin(self, *, is_counted: bool) -> None:
        """Another run of the network follows."""
        self._left = iter(self._expected)
        self._us: dict[str, float] = collections.defaultdict(float)
        if is_counted:
            self._runs.append(self._us)

    def latencies_us(self) -> dict[str, float]:
        """What the calls of each group take together, by the group's name."""
        names = set().union(*self._runs)
        return {name: statistics.median(each[name] for each in self._runs) for name in names}

    def __call__(
        self, _function: object, symbol: str, is_before: bool, _result: object, *_arguments: Any
    ) -> int:
        """One step of the virtual machine, before and after it; 0: it runs as ever."""
        if symbol not in self._functions:
            return 0
        if self._is_gpu:
            torch.cuda.synchronize()
        if is_before:
            self._begin_s = time.perf_counter()
            return 0
        took_us = (time.perf_counter() - self._begin_s) * 1e6
        # calls of parameters alone were made when the network was built
        name = next((name for name, function in self._left if function == symbol), None)
        if name is not None:
            self._us[name] += took_us
        return 0


def _function_of(each: shipping.Shipped, symbol: str) -> str:
    """What the virtual machine calls for a PrimFunc of a group."""
    return assembly.function_of(
        each.group, contest.program(each.contender, each.group, each.outcome), symbol
    )
