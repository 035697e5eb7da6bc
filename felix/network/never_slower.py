"""What runs a network's calls in the end: nothing that is returned is slower than what there was.

Groups are timed alone, with cold caches; whole calls add what the virtual machine, PyTorch's
operators between Felix's and warm caches cost. So the whole network is timed in turns with the
model as PyTorch runs it, and where PyTorch is faster the model itself is returned. Where PyTorch
is no contender the network as TVM builds it without tuning stands in.
"""

from __future__ import annotations

import dataclasses
import functools
import statistics
from collections.abc import Callable, Mapping, Sequence

from felix import errors
from felix.network import imported, in_turns, outcomes, pytorch_model, report
from felix.network.contenders import shipping
from felix.network.contenders.shipping import Contender
from felix.network.optimized import OptimizedNetwork
from felix.network.report import RunBy

#: A network without tuning whose groups take so many times as long is not built.
MAX_RATIO = 1.25
_FELIX = "felix"


def settled(
    fast: OptimizedNetwork,
    network: imported.Network,
    *,
    may_run_pytorch: bool,
    budget_s: float = in_turns.BUDGET_S,
    moved_back: Callable[[], OptimizedNetwork | None] = lambda: None,
) -> OptimizedNetwork:
    """The network with the times of whole calls, or the model as PyTorch runs it if it is faster.

    Where the network is slower, it is tried with some groups back in PyTorch before.

    Args:
        fast: the network; its outputs are the model's.
        network: what it was made from.
        may_run_pytorch: whether PyTorch may run the model; its times are in the report anyway.
        budget_s: seconds for timing.
        moved_back: builds that network; None where there is none, or no time.
    """
    args, kwargs = network.imported.calling.arguments_of(network.examples)
    others: Mapping[str, pytorch_model.Call] = {}
    if network.model is not None:
        others = _of_pytorch(network)
    calls: dict[str, pytorch_model.Call] = {_FELIX: fast, **others}
    timed = in_turns.latencies_us(
        {name: functools.partial(call, *args, **kwargs) for name, call in calls.items()},
        _FELIX,
        is_gpu=network.target.kind.name == "cuda",
        budget_s=budget_s,
    )
    timing = _timing(timed)
    if not others or not may_run_pytorch:
        fast.change_report(timing=timing)
        return fast
    best = min(others, key=lambda name: statistics.median(timed[name]))
    ratio = in_turns.ratio(timed[_FELIX], timed[best])
    if ratio.median <= 1.0:
        fast.change_report(timing=timing, why=f"{best} takes {_inverse(ratio)}")
        return fast
    if (other := _or_none(moved_back)) is not None:
        return settled(other, network, may_run_pytorch=True, budget_s=budget_s)
    why = f"Felix's network takes {ratio} as {best}"
    fast.change_report(timing=timing, runs=RunBy.PYTORCH, why=why, calls=best)
    fast.leave_calls_to(others[best])
    return fast


def _of_pytorch(network: imported.Network) -> dict[str, pytorch_model.Call]:
    assert network.model is not None
    return pytorch_model.of(
        network.model, network.imported.calling, network.examples, network.tolerance
    )


def of_model(
    network: imported.Network, shipped: Sequence[shipping.Shipped], gathered: outcomes.Outcomes
) -> OptimizedNetwork:
    """The model as PyTorch runs it, where there was no time to build its network.

    Args:
        network: of a PyTorch model.
        shipped: what its groups would run.
        gathered: what is known of their tasks.
    """
    calls = _of_pytorch(network)
    name = pytorch_model.GRAPH if pytorch_model.GRAPH in calls else pytorch_model.EAGER
    summary = report.Report(
        network=network.name,
        target=str(network.target.kind.name),
        groups=shipped,
        reason=gathered.reason,
        tuning_s=gathered.elapsed_s,
        calls=name,
        runs=RunBy.PYTORCH,
        why="there was no time to build its network: give more seconds",
    )
    return OptimizedNetwork(network, calls[name], summary)


def _inverse(ratio: in_turns.Ratio) -> in_turns.Ratio:
    return in_turns.Ratio(1 / ratio.median, 1 / ratio.high, 1 / ratio.low)


def _timing(timed: Mapping[str, Sequence[float]]) -> report.Timing:
    medians = {name: statistics.median(each) for name, each in timed.items()}
    return report.Timing(
        network_us=medians[_FELIX],
        model_us=medians.get(pytorch_model.EAGER),
        graph_us=medians.get(pytorch_model.GRAPH),
        repeats=len(timed[_FELIX]),
    )


def _or_none(build: Callable[[], OptimizedNetwork | None]) -> OptimizedNetwork | None:
    """What is built; None if it is wrong, or cannot be built: no rival."""
    try:
        return build()
    except (errors.TuningError, errors.MeasureError):
        return None


def is_untuned_near(shipped: Sequence[shipping.Shipped]) -> bool:
    """Whether the network without tuning may be as fast, by the latencies of its groups."""
    if all(each.contender is Contender.TVM for each in shipped):
        return False
    total_us = untuned_us = 0.0
    for each in shipped:
        if each.contender is Contender.TVM:
            continue  # both run the same
        if each.latency_us is None or Contender.TVM not in each.latencies_us:
            return False
        total_us += each.group.calls * each.latency_us
        untuned_us += each.group.calls * each.latencies_us[Contender.TVM]
    return untuned_us <= MAX_RATIO * total_us


def or_untuned(
    fast: OptimizedNetwork, network: imported.Network, untuned: Callable[[], OptimizedNetwork]
) -> OptimizedNetwork:
    """The faster of a network and the one without tuning, whole calls of both in turns.

    Args:
        fast: the network.
        network: what it was made from.
        untuned: builds the other.
    """
    plain = _or_none(untuned)
    if plain is None:
        return fast
    args, kwargs = network.imported.calling.arguments_of(network.examples)
    timed = in_turns.latencies_us(
        {
            RunBy.FELIX: functools.partial(fast, *args, **kwargs),
            RunBy.UNTUNED: functools.partial(plain, *args, **kwargs),
        },
        RunBy.FELIX,
        is_gpu=network.target.kind.name == "cuda",
    )
    ratio = in_turns.ratio(timed[RunBy.FELIX], timed[RunBy.UNTUNED])
    if ratio.median <= 1.0:
        return fast
    why = f"the tuned network takes {ratio} as the one without tuning"
    plain.change_report(runs=RunBy.UNTUNED, why=why)
    return plain


def as_tvm_builds_it(shipped: Sequence[shipping.Shipped]) -> list[shipping.Shipped]:
    """What the groups of the network without tuning run."""
    reason = "the network without tuning is faster as a whole"
    return [
        dataclasses.replace(each, contender=Contender.TVM, reason=reason)
        if each.contender is not Contender.TVM
        else each
        for each in shipped
    ]
