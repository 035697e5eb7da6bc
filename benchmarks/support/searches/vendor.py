"""Vendor libraries on the benchmark's subgraphs, through PyTorch: eager, and compiled.

cuBLAS, cuDNN and PyTorch's own kernels (eager), and inductor's (`torch.compile`, with autotuning),
as `felix tune` times them, but in turns, with Felix's winner among them. Operators that have
layouts are timed in all of them, not only in that of the workload; the best one counts.
"""

from __future__ import annotations

import functools
import statistics
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from felix.task import Task
    from felix.templates.generated import Program

Call = Callable[[], object]
#: Bursts of each call, and timed calls in a burst.
TURNS, BURST = 10, 8
#: Where the libraries run.
DEVICE = "cuda"
#: What the only variant of an operator without layouts is called.
ONLY = "as it is"


def calls(workload: str) -> dict[str, dict[str, Call]]:
    """The workload by each library on the GPU: layout -> "eager" and "inductor" -> call.

    The first call of an "inductor" compiles and chooses kernels. What was compiled for others is
    forgotten.
    """
    import torch

    from felix.cli.comparison import torch_child

    torch_child.use_full_precision()
    torch.compiler.reset()
    made = {}
    for layout, (operator, params) in variants(workload).items():
        form, inputs = program(operator, params, DEVICE)
        compiled = torch_child.compiled(form, DEVICE)
        made[layout] = {
            "eager": functools.partial(form, *inputs),
            "inductor": functools.partial(compiled, *inputs),
        }
    return made


def tuned(task: Task, program: Program) -> Call:
    """A program of the task on the GPU, on the stream that PyTorch uses, too."""
    import tvm

    from felix.builder import build, task_program
    from felix.runner.checking import reference

    main = build.module_of_task(program, task)["main"]
    arrays = reference.inputs(task_program.arguments(task.mod), 0, positive=False)
    return functools.partial(main, *(tvm.runtime.tensor(each, tvm.cuda(0)) for each in arrays))


def in_turns_us(
    by_layout: Mapping[str, Mapping[str, Call]], felix: Mapping[str, Call] | None = None
) -> dict[str, dict[str, float]]:
    """Median latencies in us of calls that are timed in turns, Felix's programs among them.

    A burst of each call, then the next burst of each, with a cold L2, by one clock. Felix's
    programs, its winner "felix" above all, are further kinds of the first layout.
    """
    import torch

    from felix.runner.calls import cuda_calls

    each = {
        (layout, kind): call for layout, kinds in by_layout.items() for kind, call in kinds.items()
    }
    first = next(iter(by_layout))
    each |= {(first, kind): call for kind, call in (felix or {}).items()}
    with torch.inference_mode():
        latencies_us = cuda_calls.in_turns_us(each, TURNS, BURST)
    medians: dict[str, dict[str, float]] = {layout: {} for layout in by_layout}
    for (layout, kind), times_us in latencies_us.items():
        medians[layout][kind] = statistics.median(times_us)
    return medians


def best(by_layout: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """The best latency of each kind over the layouts."""
    kinds = dict.fromkeys(kind for times in by_layout.values() for kind in times)
    return {
        kind: min(times[kind] for times in by_layout.values() if kind in times) for kind in kinds
    }


def variants(workload: str) -> dict[str, tuple[str, dict[str, Any]]]:
    """The workload in every layout of its operator: layout -> operator and parameters."""
    from felix.workloads import catalogue

    operator, params = catalogue.parse_params(workload)
    parameters = {parameter.name: parameter for parameter in catalogue.find(operator).parameters}
    if "layout" not in parameters:
        return {ONLY: (operator, params)}
    layouts = parameters["layout"].choices
    return {layout: (operator, {**params, "layout": layout}) for layout in layouts}


def program(
    operator: str, params: Mapping[str, Any], device: str
) -> tuple[Callable[..., Any], list[Any]]:
    """An operator as a PyTorch function, and inputs for it."""
    from felix.builder import task_program
    from felix.cli.comparison import torch_child
    from felix.workloads import catalogue, torch_forms

    form = torch_forms.form(operator, params)
    arguments = task_program.arguments(catalogue.build(operator, params).mod)
    return form.call, torch_child.random_inputs(form, arguments, device)
