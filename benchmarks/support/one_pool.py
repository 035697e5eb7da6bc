"""What `benchmarks/threads.py` times: kernels and functions, in the process that tunes them.

Latencies in microseconds. What is compared with tuning's is timed by the code of the run workers,
the rest by wall clock. With cold caches all that a call reads is flushed before it.
"""

from __future__ import annotations

import dataclasses
import functools
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
import tvm
from torch.nn import functional

import felix
from benchmarks.support.searches import vendor
from felix import target as targets
from felix import workloads
from felix.builder import task_program
from felix.measure import local
from felix.network import agreement, in_turns
from felix.network.contenders import timing as contenders
from felix.runner import timing
from felix.runner.calls import cpu_calls
from felix.runner.checking import reference
from felix.runner.cpu import contention
from felix.runner.cpu import timing as cpu_timing
from felix.workloads import catalogue

if TYPE_CHECKING:
    from felix.task import Task

Call: TypeAlias = Callable[[], object]
#: Latencies of calls, one of each in every turn.
Timer: TypeAlias = Callable[[Mapping[str, Call]], dict[str, list[float]]]

#: Who is timed, and what is in the place of another's call.
FELIX, PYTORCH, WAIT = "felix", "pytorch", "wait"
#: PyTorch's operator that kernels have turns with.
NEIGHBOUR = "layer_norm:1024x768"
#: Bursts of a kernel as tuning times it, and the pause before each.
BURSTS, PAUSE_S = 10, 0.1
#: Times that calls are alone and in turns, and cold calls of each then.
BLOCKS, COLD_TURNS = 10, 10
#: Turns of a function with cold caches.
FUNCTION_TURNS = 40
#: What a function is called with, 2^20 elements.
SHAPE = (1024, 1024)

FUNCTIONS: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "exp": torch.exp,
    "expm1": torch.expm1,
    "log": torch.log,
    "log1p": torch.log1p,
    "pow": lambda x: torch.pow(x, 1.7),
    "rsqrt": torch.rsqrt,
    "sin": torch.sin,
    "cos": torch.cos,
    "tan": torch.tan,
    "atan": torch.atan,
    "sinh": torch.sinh,
    "cosh": torch.cosh,
    "tanh": torch.tanh,
    "erf": torch.erf,
    "sigmoid": torch.sigmoid,
    "silu": functional.silu,
    "gelu": functional.gelu,
    "gelu-tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "softplus": functional.softplus,
    "mish": functional.mish,
}
#: Functions of positive numbers.
POSITIVE = ("log", "log1p", "pow", "rsqrt")


def ratio(ours_us: Sequence[float], others_us: Sequence[float]) -> dict[str, Any]:
    """How many times as long we take, and by how many pairs."""
    found = in_turns.ratio(ours_us, others_us)
    return {**dataclasses.asdict(found), "pairs": len(ours_us)}


def beside(calls: Mapping[str, Call], timed: Timer, *, waits: bool) -> dict[str, dict[str, Any]]:
    """How many times as long each call takes in turns with the others as without them.

    Args:
        calls: at least two.
        timed: times them, again and again in turns and each without the others.
        waits: without them as long as theirs pass between two calls, so that all but their threads
            and their data is the same.
    """
    alone_us: dict[str, list[float]] = {name: [] for name in calls}
    turns_us: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(BLOCKS):
        medians_us = {name: statistics.median(each) for name, each in timed(calls).items()}
        for name, us in medians_us.items():
            others_us = sum(medians_us.values()) - us
            wait = {WAIT: functools.partial(_wait, others_us)} if waits else {}
            alone_us[name].append(statistics.median(timed({name: calls[name], **wait})[name]))
            turns_us[name].append(us)
    return {
        name: {
            "alone_us": statistics.median(alone_us[name]),
            "in_turns_us": statistics.median(turns_us[name]),
            **ratio(turns_us[name], alone_us[name]),
        }
        for name in calls
    }


def _wait(us: float) -> None:
    """Keep this thread busy."""
    end = time.perf_counter() + 1e-6 * us
    while time.perf_counter() < end:
        pass


def target(threads: int) -> tvm.target.Target:
    """This CPU with so many cores."""
    return targets.parse(f"llvm -num-cores {threads}")


def kernel(workload: str, threads: int, trials: int) -> dict[str, Any]:
    """Tune a kernel for so many threads, compile it, and time it with as many here."""
    task = workloads.parse(workload, target(threads))
    result = felix.tune(task, trials=trials)
    library, reported_us = felix.compile(result), result.best.latency_us
    call, inputs = vendor.program(*catalogue.parse_params(NEIGHBOUR), "cpu")
    tensors = _tensors(task)
    calls = {
        FELIX: functools.partial(library["main"], *tensors),
        PYTORCH: functools.partial(call, *inputs),
    }
    read = [*tensors, *map(tvm.runtime.from_dlpack, inputs)]
    with contenders.undisturbed(task.target), torch.inference_mode():
        here_us = _as_tuned_us(library, task, threads)
        by_caches = {
            caches: beside(calls, timed, waits=caches == "cold")
            for caches, timed in _timers(read).items()
        }
    return {
        "reported_us": reported_us,
        "here_us": statistics.median(here_us),
        "here": ratio(here_us, [reported_us] * len(here_us)),
        **by_caches,
    }


def functions(
    names: Sequence[str], threads: Sequence[int], trials: int
) -> Iterator[dict[str, Any]]:
    """Tune functions for the most threads, and time them and PyTorch's in turns with each."""
    x = torch.randn(SHAPE)
    inputs = {name: x.abs() + 0.1 if name in POSITIVE else x for name in names}
    tasks = [_task(name, inputs[name], max(threads)) for name in names]
    results = felix.tune(tasks, trials=trials * len(tasks)).results
    mains = [felix.compile(result)["main"] for result in results]
    for name, main in zip(names, mains, strict=True):
        for count in threads:
            with contenders.undisturbed(target(count)), torch.inference_mode():
                found = _function(name, main, inputs[name])
            yield {"name": name, "threads": count, **found}


def _function(name: str, main: Callable[..., Any], x: torch.Tensor) -> dict[str, Any]:
    """A function by Felix and by PyTorch in turns; both read the same memory."""
    y = torch.empty_like(x)
    arguments = [tvm.runtime.from_dlpack(each) for each in (x, y)]
    calls: dict[str, Call] = {
        FELIX: functools.partial(main, *arguments),
        PYTORCH: functools.partial(FUNCTIONS[name], x),
    }
    found: dict[str, Any] = {}
    for caches, timed in _timers(arguments[:1], FUNCTION_TURNS).items():
        times_us = timed(calls)
        medians = {f"{who}_us": statistics.median(each) for who, each in times_us.items()}
        found[caches] = {**medians, **ratio(times_us[FELIX], times_us[PYTORCH])}
    return {"max_error": agreement.difference(y, FUNCTIONS[name](x)), **found}


def _timers(read: Sequence[Any], turns: int = COLD_TURNS) -> dict[str, Timer]:
    """How calls that read these tensors are timed, with cold and with warm caches."""
    return {
        "cold": lambda calls: cpu_calls.in_turns_us(calls, read, turns, burst=1),
        "warm": lambda calls: in_turns.latencies_us(calls, next(iter(calls)), is_gpu=False),
    }


def _as_tuned_us(library: tvm.runtime.Module, task: Task, threads: int) -> list[float]:
    """Medians of bursts that are timed here as a run worker does at the end of tuning."""
    flush = cpu_timing.flush(local.of(task.target).cache_bytes)
    guard = contention.ContentionGuard(contention.multiply_adds(task.target, threads))
    guard.learn()
    places, medians_us = [], []
    for _ in range(BURSTS):
        time.sleep(PAUSE_S)
        places.append(_tensors(task))  # held, so that the next ones lie elsewhere
        latencies_us = guard.measure_stable(
            functools.partial(
                cpu_timing.latencies,
                library,
                tvm.cpu(),
                places[-1],
                timing.TimingOptions().burst(),
                flush=flush,
                first_us=0.0,
                best_us=None,
            )
        )
        medians_us.append(statistics.median(latencies_us))
    return medians_us


def _tensors(task: Task) -> list[tvm.runtime.Tensor]:
    """A kernel's arguments as candidates get them."""
    arrays = reference.inputs(task_program.arguments(task.mod), 0, positive=False)
    return [tvm.runtime.tensor(array) for array in arrays]


class _Function(torch.nn.Module):
    def __init__(self, name: str) -> None:
        super().__init__()
        self._call = FUNCTIONS[name]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self._call(x)


def _task(name: str, x: torch.Tensor, threads: int) -> Task:
    """The one program of a function.

    Raises:
        ValueError: it is none, or several.
    """
    tasks = felix.extract_tasks(_Function(name), (x,), target(threads))
    if len(tasks) != 1:
        raise ValueError(f"{name} is {len(tasks)} programs")
    return tasks[0]
