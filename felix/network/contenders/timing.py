"""Timing contenders side by side: the same cold inputs, in turns, and nobody else measures."""

from __future__ import annotations

import contextlib
import functools
import statistics
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import torch
import tvm

from felix.measure import locks
from felix.runner.calls import cpu_calls, cuda_calls

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
    turns: int = TURNS,
) -> dict[_Name, float]:
    """The median latency of each network, called with these inputs on a target's device, in us."""
    calls: dict[_Name, Callable[[], object]] = {
        name: functools.partial(main, *inputs) for name, main in mains.items()
    }
    if full.kind.name == "cuda":
        latencies_us = cuda_calls.in_turns_us(calls, turns, BURST, MAX_RATIO)
    else:
        flushed = [tvm.runtime.from_dlpack(each) for each in inputs]
        latencies_us = cpu_calls.in_turns_us(calls, flushed, turns, BURST, MAX_RATIO)
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
