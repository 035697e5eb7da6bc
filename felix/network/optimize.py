"""Optimizing a network, from a model to a callable: start reading here.

    fast = felix.optimize(model, (x,), seconds=300)
    y = fast(x)                       # as model(x)
    print(fast.report)
    fast.export("net/")

    model -> import, lower -> groups -> known results -> tuning of the rest
                                                             |
    callable <- the faster <- whole calls <- check <- build <- assembly <- the fastest contender
                 of both       in turns                                    of each group

Equal groups are one task, weighted by its calls, and `felix.tune` shares the time out among the
tasks. What tuning gives is stored (`felix.database`): the same network again costs no
measuring, and similar tasks start from what is known.
"""

from __future__ import annotations

import dataclasses
import math
import os
import pathlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from felix import errors
from felix import target as targets
from felix.database import databases, store
from felix.network import (
    assembly,
    checking,
    group_costs,
    groups,
    imported,
    in_context,
    in_turns,
    never_slower,
    optimized,
    outcomes,
    workers,
)
from felix.network import deadline as deadlines
from felix.network import report as reports
from felix.network.attentions import whole
from felix.network.contenders import alone, contest, shipping
from felix.tuning import options as tune_options

#: Seconds of a call when neither seconds nor trials are given.
DEFAULT_SECONDS = 300.0
#: Float operations that take as long as moving a byte, about.
_FLOPS_OF_BYTE = 10.0


def optimize(
    model: imported.Model,
    example_inputs: Sequence[Any] | torch.Tensor = (),
    *,
    seconds: float | None = None,
    trials: int | None = None,
    target: targets.TargetLike | None = None,
    kwargs: Mapping[str, Any] | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    values: Mapping[str, Any] | None = None,
    out: str | os.PathLike[str] | None = None,
    known_results: str | os.PathLike[str] | None = None,
    database: str | os.PathLike[str] | None = None,
    seed: int = 0,
    options: tune_options.TuneOptions | None = None,
    on_event: tune_options.OnEvent | None = None,
    pytorch: bool = True,
    improve: bool = False,
    fusion: str | None = None,
    allow_tf32: bool = False,
) -> optimized.OptimizedNetwork:
    """Tune a model's programs and build it from the fastest ones.

    Args:
        model: a `torch.nn.Module`, a `torch.export.ExportedProgram`, or the path or bytes of an
            ONNX file. The module is taken in inference mode; its own mode stays.
        example_inputs: positional arguments of a call (or one tensor). The result takes inputs
            of their shapes, types and structure. An ONNX file needs none.
        seconds: how long the call takes, 300 if trials are not given either. What there is no
            time for is left out, the groups that compute least first; without time to build
            anything PyTorch runs the model.
        trials: candidates to measure, over all tasks; without seconds the call takes what it
            takes.
        target: what to build for; if left out, for a GPU where the model or the inputs are on one,
            else for this CPU. A module and its inputs have to be on the target's kind of device.
        kwargs: keyword arguments of a call.
        shapes: shapes of an ONNX file's inputs whose extents it leaves open.
        values: values of an ONNX file's inputs that are the same in every call, such as axes.
        out: folder of the tuning session; one beside the known results if left out, until the
            session ends. A session of the same tasks that was killed is resumed.
        known_results: the file of known results (`felix.database.store`).
        database: folder of a MetaSchedule database: its schedules of the network's tasks are
            measured first.
        seed: everything random follows from it.
        options: details of tuning.
        on_event: called with what happens (`felix.events`).
        pytorch: whether PyTorch's own operators run the groups in which they are the fastest.
        improve: whether known tasks are tuned further, from their best schedules on.
        fusion: how operators are grouped: "rules", fixed ones; "planned", by what groups cost,
            with norms folded into products and products of one tensor as one where that is
            cheaper. None for "planned" on a GPU and "rules" on a CPU.
        allow_tf32: products of float32 may be computed in TF32 on a GPU, by PyTorch's operators
            as well. Outputs may then be off as those of float16 may.

    Returns:
        A callable with the model's signature. Its outputs agreed with the model's on the
        examples (`felix.network.agreement` has the tolerance).

    Raises:
        WorkloadError: the model cannot be exported, imported or lowered, or `fusion` is unknown.
        TargetError: unknown target.
        TuningError: tuning cannot start, or outputs differ from the model's.
        RecordError: there is no database in the folder.
        FelixError: a file cannot be read or written.
    """
    if seconds is None and trials is None:
        seconds = DEFAULT_SECONDS
    deadline = deadlines.Deadline(time.monotonic(), seconds)
    request = outcomes.Request(
        trials=trials,
        seconds=seconds,
        seed=seed,
        options=options or tune_options.TuneOptions(),
        out=None if out is None else pathlib.Path(out),
        on_event=on_event,
        begun_s=deadline.begun_s,
        pytorch=pytorch,
        improve=improve,
        database=None if database is None else databases.Database(database),
    )
    args = (example_inputs,) if isinstance(example_inputs, torch.Tensor) else example_inputs
    known = store.Store(known_results)
    if target is None:
        target = imported.default_target(imported.tensors(model, args, kwargs or {}))
    full = targets.parse(target)
    placed = imported.placed(model, args, kwargs or {}, imported.device_of(full))
    grouping = group_costs.grouping(fusion, full, known, allow_tf32, deadline.can_sketch)
    with workers.starting(request.options) as started:
        network = imported.read(
            *placed,
            full,
            shapes,
            grouping,
            values=values,
            can_lower=deadline.can_lower if pytorch else lambda: True,
        )
        if not len(network.lowered.functions):
            return never_slower.of_model(network, (), outcomes.NOTHING)
        network = dataclasses.replace(network, allow_tf32=allow_tf32)
        request = dataclasses.replace(request, options=started.options)
        started.await_quiet(full)
        return _optimized(network, known, request, deadline)


#: Networks that are built to see which groups go back to PyTorch: of PyTorch's operators, and of
#: what is the faster then.
_N_REBUILT = 2


def _optimized(
    network: imported.Network,
    known: store.Store,
    request: outcomes.Request,
    deadline: deadlines.Deadline,
) -> optimized.OptimizedNetwork:
    every = groups.of(network.lowered, network.target, allow_tf32=network.allow_tf32)
    alone_us: contest.Alone = {}
    if request.pytorch:
        alone_us = alone.latencies_us(every, known, deadline.timing())
    tasks, rivals_us = groups.tasks(every), alone.least_us(alone_us)
    gathered = outcomes.within(deadline, len(every), tasks, known, request, rivals_us)
    contenders = contest.Contest(network, known if request.pytorch else None, alone_us)
    return from_outcomes(network, every, gathered, contenders, deadline=deadline)


def from_outcomes(
    network: imported.Network,
    every: Sequence[groups.Group],
    gathered: outcomes.Outcomes,
    contenders: contest.Contest,
    begin_step: Callable[[str], None] = lambda step: None,
    deadline: deadlines.Deadline = deadlines.NEVER,
) -> optimized.OptimizedNetwork:
    """Build a network from what is known of its groups' tasks, check it and time it.

    Args:
        network: the network.
        every: its groups (`groups.of`).
        gathered: what is known of their tasks.
        contenders: compares what a group may run.
        begin_step: called with what is done from now on.
        deadline: when the call ends; without time to build the network PyTorch runs the model.

    Raises:
        TuningError: outputs differ from the model's.
        MeasureError: a program cannot be compiled here.
    """
    begin = time.perf_counter()
    n_groups, kind = len(every), network.target.kind.name
    may_run_pytorch = contenders.store is not None and network.model is not None
    chosen = _chosen(network, every, gathered, contenders, deadline)
    if may_run_pytorch and not deadline.can_build(n_groups, kind):
        return never_slower.of_model(network, chosen.shipped, gathered)

    def elapsed_s() -> float:
        return time.perf_counter() - begin + gathered.elapsed_s

    try:
        fast = _built(network, chosen, gathered, contenders, elapsed_s, begin_step)
    except errors.TuningError:
        if not contenders.has_clear:
            raise
        network = checking.judged(network)  # or the import is wrong, and no contender
        contenders = contenders.in_turns()  # finds what is wrong, however long it takes
        chosen = _chosen(network, every, gathered, contenders, deadlines.NEVER)
        fast = _built(network, chosen, gathered, contenders, elapsed_s, begin_step)
    begin_step("timing the network")
    budget_s = min(in_turns.BUDGET_S, max(0.0, deadline.left_s))
    if may_run_pytorch:

        def moved_back() -> optimized.OptimizedNetwork | None:
            has_time = deadline.can_build(_N_REBUILT * n_groups, kind)
            moved = _moved_back(network, chosen, fast) if has_time else None
            if moved is None:
                return None
            return _built(network, moved, gathered, contenders, elapsed_s, begin_step)

        return never_slower.settled(
            fast, network, may_run_pytorch=True, budget_s=budget_s, moved_back=moved_back
        )
    assert fast.report.timing is not None  # by the call that checked it
    if deadline.left_s < 1e-6 * fast.report.timing.network_us * (1 + in_turns.LEAST_TURNS):
        return fast
    has_time = deadline.can_build(n_groups, kind)
    if has_time and never_slower.is_untuned_near(chosen.shipped):
        plain = dataclasses.replace(chosen, shipped=never_slower.as_tvm_builds_it(chosen.shipped))
        fast = never_slower.or_untuned(
            fast,
            network,
            lambda: _built(network, plain, gathered, contenders, elapsed_s, begin_step),
        )
    return never_slower.settled(fast, network, may_run_pytorch=False, budget_s=budget_s)


def _chosen(
    network: imported.Network,
    every: Sequence[groups.Group],
    gathered: outcomes.Outcomes,
    contenders: contest.Contest,
    deadline: deadlines.Deadline,
) -> whole.Chosen:
    """What runs, as far as there is time to compare. Some is kept for attentions, which come last:
    each is several groups."""

    def left_s() -> float:
        return deadline.comparing_s(len(every), network.target.kind.name)

    kept_s = 0.0
    if contenders.store is not None and deadline.seconds is not None:
        kept_s = deadlines.ATTENTION_S * whole.n_kinds(network.lowered)
    shipped = chosen_programs(every, gathered, contenders, lambda: left_s() - kept_s)
    return whole.choose(network, shipped, contenders.store if left_s() > 0.0 else None)


def _moved_back(
    network: imported.Network, chosen: whole.Chosen, fast: optimized.OptimizedNetwork
) -> whole.Chosen | None:
    """What runs if groups go back to PyTorch; None if none does (`in_context`)."""
    changed = dataclasses.replace(network, lowered=chosen.lowered)
    assert fast.executable is not None  # it was built
    shipped = in_context.moved_back(
        chosen.lowered,
        chosen.shipped,
        fast.executable,
        lambda shipped: assembly.built(changed, contest.runs(shipped)),
        network.examples,
    )
    return None if shipped is None else dataclasses.replace(chosen, shipped=shipped)


def _built(
    network: imported.Network,
    chosen: whole.Chosen,
    gathered: outcomes.Outcomes,
    contenders: contest.Contest,
    elapsed_s: Callable[[], float],
    begin_step: Callable[[str], None],
) -> optimized.OptimizedNetwork:
    """The network of what was chosen, which computes what the model does."""
    begin_step("building the network")
    changed = dataclasses.replace(network, lowered=chosen.lowered)
    built = assembly.built(changed, contest.runs(chosen.shipped))
    runner, calls = optimized.runner(built, network.examples)
    begin_step("checking the network")
    checked = checking.check(network, runner, elapsed_s())
    network = checked.network
    summary = reports.Report(
        network=network.name,
        target=str(network.target.kind.name),
        groups=chosen.shipped,
        attentions=chosen.wholes,
        pytorch={name: len(forms) for name, forms in network.imported.pytorch.items()},
        n_compared=contenders.n_timed + chosen.n_timed,
        reason=gathered.reason,
        tuning_s=gathered.elapsed_s,
        curve=gathered.curve,
        max_error=checked.max_error,
        timing=reports.Timing(network_us=1e6 * checked.call_s, model_us=None, repeats=1),
        unchecked=checked.left_out,
        judged_by=network.judged_by,
        calls=calls,
    )
    return optimized.OptimizedNetwork(network, (built, runner), summary)


def chosen_programs(
    every: Sequence[groups.Group],
    gathered: outcomes.Outcomes,
    contenders: contest.Contest,
    left_s: Callable[[], float] = lambda: math.inf,
) -> list[shipping.Shipped]:
    """What each group runs, by what is known of its task and what is timed in `left_s` now."""

    def work(index: int) -> float:
        task = every[index].task
        of_one = 0.0 if task is None else task.flops + _FLOPS_OF_BYTE * task.min_bytes
        return every[index].calls * of_one

    def key(group: groups.Group) -> str:
        return "" if group.task is None else group.task.key

    order = sorted(range(len(every)), key=work, reverse=True)
    outcomes_of = [(every[index], gathered.by_key.get(key(every[index]))) for index in order]
    chosen = {
        index: shipping.choose(group, outcome, compared, is_known=key(group) in gathered.known)
        for index, (group, outcome, compared) in zip(
            order, contenders.compare(outcomes_of, left_s), strict=True
        )
    }
    return [chosen[index] for index in range(len(every))]
