"""Working off the queue of unknown tasks: `felix tune --queued`.

Tasks of a target are tuned together, weighted by how often they were met, and their results are
stored. Then they are compared with PyTorch's operators, side by side. What was tuned and compared
leaves the queue; the next compilation uses it.
"""

from __future__ import annotations

import collections
import dataclasses
import time
from collections.abc import Collection, Mapping, Sequence

import tvm
from tvm import relax

from felix import errors
from felix.builder import task_program
from felix.database import store
from felix.frontend.rewriting import with_function
from felix.network import deadline, groups, optimize, outcomes, workers
from felix.network.contenders import alone, contest, shipping
from felix.task import Task
from felix.tir import grammar
from felix.torch_calls import form as forms

#: The program's name in a network of one call.
_SYMBOL = "queued"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """A task that left the queue: what is the fastest now, and why."""

    name: str
    device: str
    n_requests: int
    shipped: shipping.Shipped


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """What became of the queue.

    Attributes:
        done: tasks that left it.
        left: names of those that wait still, with the reason.
        reason: why tuning ended: "interrupted", or None.
    """

    done: Sequence[Done]
    left: Sequence[tuple[str, str]]
    reason: str | None


@dataclasses.dataclass(frozen=True, slots=True)
class _OneCall:
    """A network of one call, for comparing what may run it."""

    lowered: tvm.IRModule
    target: tvm.target.Target


def work_off(
    known: store.Store, request: outcomes.Request, keys: Collection[str] | None = None
) -> Summary:
    """Tune what is queued, most requested first where time or trials do not suffice for all.

    Args:
        known: the known results, whose queue it is.
        request: how to tune. Seconds (300 if neither they nor trials are given) and trials are
            shared out among targets by their numbers of tasks.
        keys: of the tasks to tune; None: all.

    Raises:
        RecordError: the file of known results cannot be used.
    """
    if request.trials is None and request.seconds is None:
        request = dataclasses.replace(request, seconds=optimize.DEFAULT_SECONDS)
    waiting = [each for each in store.queued(known) if keys is None or each.task_key in keys]
    by_target: dict[str, list[tuple[store.QueuedTask, Task]]] = collections.defaultdict(list)
    left: list[tuple[str, str]] = []
    for entry in waiting:
        try:
            task = Task.from_json(entry.task, trusted=True)
        except errors.FelixError as error:  # of another version
            store.unqueue(known, [entry])
            left.append((entry.task_key, f"it cannot be read and is dropped: {error}"))
            continue
        task = dataclasses.replace(task, weight=task.weight * entry.n_requests)
        by_target[f"{entry.device} {task.target}"].append((entry, task))
    n_tasks = sum(map(len, by_target.values()))
    done: list[Done] = []
    for entries in by_target.values():
        share = len(entries) / n_tasks
        try:
            reason = _tuned(known, entries, _shared(request, share), done, left)
        except errors.FelixError as error:
            left += [(task.name, str(error)) for _, task in entries]
            continue
        if reason == "interrupted":
            return Summary(done=done, left=left, reason=reason)
    return Summary(done=done, left=left, reason=None)


def _shared(request: outcomes.Request, share: float) -> outcomes.Request:
    return dataclasses.replace(
        request,
        seconds=None if request.seconds is None else request.seconds * share,
        trials=None if request.trials is None else max(1, round(request.trials * share)),
    )


def _tuned(
    known: store.Store,
    entries: Sequence[tuple[store.QueuedTask, Task]],
    request: outcomes.Request,
    done: list[Done],
    left: list[tuple[str, str]],
) -> str | None:
    """Tune and compare tasks of one target; why tuning ended."""
    every, tasks = [_group(*each) for each in entries], [task for _, task in entries]
    ends = deadline.Deadline(time.monotonic(), request.seconds)
    with workers.starting(request.options) as started:
        started.await_quiet(tasks[0].target)
        alone_us = alone.latencies_us(every, known, ends.timing())
        request = dataclasses.replace(request, options=started.options)
        least_us = alone.least_us(alone_us)
        gathered = outcomes.within(ends, len(every), tasks, known, request, least_us)
    for (entry, task), group in zip(entries, every, strict=True):
        contenders = contest.Contest(_OneCall(_one_call(task), task.target), known, alone_us)
        shipped = _fastest(group, gathered, contenders, has_time=ends.left_s > 0.0)
        if isinstance(shipped, str):
            left.append((task.name, shipped))
            continue
        store.unqueue(known, [entry])
        done.append(
            Done(name=task.name, device=entry.device, n_requests=entry.n_requests, shipped=shipped)
        )
    return gathered.reason


def _fastest(
    group: groups.Group, gathered: outcomes.Outcomes, contenders: contest.Contest, has_time: bool
) -> shipping.Shipped | str:
    """What is the fastest of a task, or why it stays in the queue."""
    assert group.task is not None  # it was queued
    key = group.task.key
    outcome = gathered.by_key.get(key)
    if outcome is None or gathered.reason == "interrupted":
        return "time or trials were used up before its turn"
    if key in gathered.passing:
        return str(outcome.failure)
    if not has_time and contenders.known(group, outcome) is None:
        return "time was used up before it was compared"
    try:
        compared = contenders.held(group, outcome)
    except grammar.TVM_ERRORS as error:
        return f"it cannot be compared: {grammar.first_line(error)}"
    return shipping.choose(group, outcome, compared, is_known=key in gathered.known)


def _group(entry: store.QueuedTask, task: Task) -> groups.Group:
    form = "PyTorch has no operators for it"
    return groups.Group(
        name=task.name,
        symbols=(_SYMBOL,),
        calls=1,
        task=task,
        reason=None,
        dtypes=groups.dtypes(task.func),
        form=form if entry.form is None else forms.form_from_json(entry.form),
    )


def _one_call(task: Task) -> tvm.IRModule:
    """A network that calls a task's program once."""
    arguments = task_program.arguments(task.mod)
    tensors = {each.name: relax.TensorType(each.shape, each.dtype) for each in arguments}
    operands = [relax.Var(each.name, tensors[each.name]) for each in arguments if each.is_input]
    results = [tensors[each.name] for each in arguments if each.is_output]
    builder = relax.BlockBuilder()
    variable = builder.add_func(task.func.without_attr("global_symbol"), _SYMBOL)
    call = relax.call_tir(variable, operands, results if len(results) > 1 else results[0])
    return with_function(builder.get(), operands, lambda _: call)


def to_json(summary: Summary) -> Mapping[str, object]:
    """The summary as JSON."""
    return {
        "reason": summary.reason,
        "done": [
            {
                "task": each.name,
                "device": each.device,
                "requests": each.n_requests,
                "fastest": str(each.shipped.contender),
                "reason": each.shipped.reason,
                "latencies_us": {
                    str(name): value for name, value in each.shipped.latencies_us.items()
                },
                "untuned": each.shipped.untuned,
            }
            for each in summary.done
        ],
        "left": [{"task": name, "reason": reason} for name, reason in summary.left],
    }
