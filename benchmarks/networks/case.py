"""One case of `compare`, in a process of its own: `python -m benchmarks.networks.case IN OUT`.

IN is a file of JSON: `case`, the fields of `Case`; `known_results`, a file; `again`, whether only
Felix's side is made, of what is known. Without `again` also `peers`, their names; `turns` and
`turns_s`, how long all are timed; `folder`, one to make. OUT becomes what was found. Durations
are in seconds, latencies in microseconds.

What Felix and peers make ready is a call without arguments. A latency is that of one call by wall
clock, from the call to the end of its last kernel, with warm caches and inputs that lie on the
device. TF32 is off.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import importlib
import json
import pathlib
import random
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import torch

from benchmarks.networks import catalogue, peers, public
from benchmarks.support import common

#: Before the names of `public.NETWORKS`.
PUBLIC = "public:"
#: Felix among the contenders.
FELIX = "felix"
#: Turns that all calls have, however long they take: fewer have no interval to speak of.
LEAST_TURNS = 30
#: Calls of a peer before it is timed: CUDA graphs are recorded by the second one.
_WARM_UP = 3
#: A call of the network, and what is said of it.
Ready: TypeAlias = tuple[peers.Call, dict[str, Any]]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A network, how it is made, and how Felix gets it.

    Attributes:
        name: in the catalogue, or `PUBLIC` and a name of `public.NETWORKS`.
        batch: of its inputs; None of public networks, whose inputs are fixed.
        dtype: element type of its floats.
        small: whether it is the small variant.
        target: what Felix builds for.
        seconds: that Felix's side has.
        way: of `WAYS`.
    """

    name: str
    batch: int | None
    dtype: str
    small: bool
    target: str
    seconds: float
    way: str

    def make(self) -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
        """The model and its inputs on the target's device."""
        dtype = getattr(torch, self.dtype)
        model: torch.nn.Module
        if self.name.startswith(PUBLIC):
            model, inputs = public.positional(self.name.removeprefix(PUBLIC))
        else:
            batch = self.batch or 1
            model, inputs = catalogue.make(self.name, batch=batch, small=self.small)
        place = "cpu" if self.target.startswith("llvm") else "cuda"
        moved = (each.to(place) for each in inputs)
        cast = tuple(each.to(dtype) if each.is_floating_point() else each for each in moved)
        return model.to(place, dtype), cast


def main(request_path: pathlib.Path, result_path: pathlib.Path) -> None:
    """Run a case as it is requested, and write what was found."""
    request = json.loads(request_path.read_text())
    if peers.STOCK in request.get("peers", ()):
        importlib.import_module(peers.INTRINSICS)
    case, known = Case(**request["case"]), pathlib.Path(request["known_results"])
    _use_all_cores_without_tf32()
    model, inputs = case.make()
    with torch.no_grad():  # the device is ready, and libraries are loaded
        expected = _tensors(model(*inputs))
    call, facts = WAYS[case.way](case, model, inputs, known, is_again=request["again"])
    found: dict[str, Any] = {"felix": facts}
    if not request["again"]:
        ready, of_peers = _peers(case, model, inputs, request)
        calls = {FELIX: call, **ready}
        with torch.no_grad():
            timed_us = in_turns(calls, request["turns"], request["turns_s"])
            errors = {name: _error(_tensors(each()), expected) for name, each in calls.items()}
        for name, each in {FELIX: facts, **of_peers}.items():
            each["max_error"] = errors.get(name)
        found |= {"peers": of_peers, **figures(timed_us), "device": _device(case.target)}
    common.write(result_path, found)


def _use_all_cores_without_tf32() -> None:
    from felix.cli.comparison import torch_child
    from felix.target import cpu

    torch_child.use_full_precision()
    torch.set_num_threads(cpu.available_cores())


def _device(target: str) -> str:
    from felix import target as targets

    return str(targets.hardware(targets.parse(target)).name)


# ---------------------------------------------------------------- Felix


def _optimized(
    case: Case,
    model: torch.nn.Module,
    inputs: Sequence[torch.Tensor],
    known: pathlib.Path,
    is_again: bool,
) -> Ready:
    """What `felix.optimize` returns; again it is the same call."""
    import felix

    begin = time.perf_counter()
    fast = felix.optimize(
        model, inputs, seconds=case.seconds, target=case.target, known_results=known
    )
    took_s = time.perf_counter() - begin
    report = fast.report
    return functools.partial(fast, *inputs), {
        "took_s": took_s,
        "runs": str(report.runs),
        "why": report.why,
        "groups": collections.Counter(str(each.contender) for each in report.groups),
    }


def _by_backend(
    case: Case,
    model: torch.nn.Module,
    inputs: Sequence[torch.Tensor],
    known: pathlib.Path,
    is_again: bool,
) -> Ready:
    """What `torch.compile` makes with Felix's backend.

    A first call queues the tasks, and they are worked off in the seconds that are left but for as
    many as that call took; then it is compiled again. Again, it is compiled by what is known.
    """
    from felix.database import store
    from felix.network import outcomes
    from felix.network.backend import queued

    begin_s = time.monotonic()
    call, results = _compiled(case, model, inputs, known), store.Store(known)
    left_s = case.seconds - 2.0 * (time.monotonic() - begin_s)
    if not is_again and store.queued(results) and left_s > 0.0:
        queued.work_off(results, outcomes.Request(seconds=left_s))
        call = _compiled(case, model, inputs, known)
    return call, {"took_s": time.monotonic() - begin_s, **_of_backend()}


def _compiled(
    case: Case, model: torch.nn.Module, inputs: Sequence[torch.Tensor], known: pathlib.Path
) -> peers.Call:
    """The model by the backend, after its first call."""
    torch._dynamo.reset()
    options: Any = {"known_results": str(known), "target": case.target}
    compiled = torch.compile(model, backend="felix", dynamic=False, options=options)
    with torch.no_grad():
        compiled(*inputs)
    return functools.partial(compiled, *inputs)


def _of_backend() -> dict[str, Any]:
    """Who runs the parts of the graphs that were compiled, and why."""
    import felix

    report = felix.backend_report()
    by_whom = {"felix" if part.is_tuned else "pytorch" for part in report.parts}
    reasons = [graph.reason for graph in report.graphs]
    reasons += [each.reason for graph in report.graphs for each in graph.sizes]
    reasons += [part.reason for part in report.parts]
    return {
        "runs": "both" if len(by_whom) > 1 else next(iter(by_whom), "pytorch"),
        "why": "; ".join(dict.fromkeys(filter(None, reasons))),
        "groups": collections.Counter(
            str(each.contender) if part.is_tuned else "pytorch"
            for part in report.parts
            for each in part.groups
        ),
    }


#: How Felix gets a model, by name.
WAYS: Mapping[str, Callable[..., Ready]] = {"optimize": _optimized, "backend": _by_backend}


# ---------------------------------------------------------------- peers, and all in turns


def _peers(
    case: Case, model: torch.nn.Module, inputs: Sequence[torch.Tensor], request: Mapping[str, Any]
) -> tuple[dict[str, peers.Call], dict[str, dict[str, Any]]]:
    """The calls of those peers that run, and of each how long it took until it was ready.

    `ready_s` is the time from asking for a peer until its first call had ended, `failure` what it
    raised.
    """
    calls: dict[str, peers.Call] = {}
    facts: dict[str, dict[str, Any]] = {}
    for name in request["peers"]:
        begin, ready_s, failure = time.perf_counter(), None, None
        try:
            with torch.no_grad():
                call = _peer(name, case, model, inputs, request)
                _call_us(call)
                ready_s = time.perf_counter() - begin
                for _ in range(_WARM_UP - 1):
                    call()
            calls[name] = call
        except Exception as error:  # a peer may raise anything: the others are timed
            lines = str(error).strip().splitlines() or [""]
            failure = f"{type(error).__name__}: {lines[0]}"[:300]
        facts[name] = {"ready_s": ready_s, "failure": failure}
    return calls, facts


def _peer(
    name: str,
    case: Case,
    model: torch.nn.Module,
    inputs: Sequence[torch.Tensor],
    request: Mapping[str, Any],
) -> peers.Call:
    if name != peers.STOCK:
        return peers.make(name, model, inputs)
    from benchmarks.networks import stock

    return stock.make(case, pathlib.Path(request["folder"]))


def in_turns(
    calls: Mapping[str, peers.Call], turns: int, turns_s: float
) -> dict[str, list[float]]:
    """Latencies in us: in each turn one call of each, and each turn begins with another one.

    The others of a turn are in random order, for what ran before slows a call. There are `turns`,
    fewer where `turns_s` have passed, but never fewer than `LEAST_TURNS`.
    """
    timed_us: dict[str, list[float]] = {name: [] for name in calls}
    rng, end = random.Random(0), time.perf_counter() + turns_s
    for turn in range(turns):
        if turn >= LEAST_TURNS and time.perf_counter() > end:
            break
        first, *others = (list(calls) * 2)[turn % len(calls) :][: len(calls)]
        for name in (first, *rng.sample(others, len(others))):
            timed_us[name].append(_call_us(calls[name]))
    return timed_us


def _call_us(call: peers.Call) -> float:
    is_used: Any = torch.cuda.is_initialized
    begin = time.perf_counter()
    call()
    if is_used():
        torch.cuda.synchronize()
    return (time.perf_counter() - begin) * 1e6


def figures(timed_us: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    """Medians of all, and how many times as long as Felix's each other's calls take."""
    from felix.network import in_turns as felix_turns

    ratios = {}
    for name, others_us in timed_us.items():
        if name != FELIX:
            ratio = felix_turns.ratio(others_us, timed_us[FELIX])
            ratios[name] = {**dataclasses.asdict(ratio), "turns": len(others_us)}
    medians = {name: statistics.median(each) for name, each in timed_us.items()}
    return {"latency_us": medians, "ratios": ratios}


def _tensors(result: Any) -> list[torch.Tensor]:
    """The tensors of a result, copied: a later call may overwrite them."""
    leaves = torch.utils._pytree.tree_leaves(result)
    return [leaf.clone() for leaf in leaves if isinstance(leaf, torch.Tensor)]


def _error(actual: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]) -> float:
    """The largest difference, relative to the root mean square of an output."""
    from felix.network import agreement

    if len(actual) != len(expected):
        return float("inf")
    pairs = zip(actual, expected, strict=True)
    return max(agreement.difference(one.to(other.device), other) for one, other in pairs)


if __name__ == "__main__":
    main(*map(pathlib.Path, sys.argv[1:]))
