"""Vendor libraries on the benchmark's subgraphs, through PyTorch: eager, and compiled.

cuBLAS, cuDNN and PyTorch's own kernels (eager), and inductor's (`torch.compile`, with autotuning),
as `felix tune` times them. Operators that have layouts are timed in all of them, not only in that
of the workload; the best one counts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

#: What the only variant of an operator without layouts is called.
ONLY = "as it is"


def latencies_us(workload: str) -> dict[str, dict[str, float]]:
    """Median latencies in us by layout: "eager" and "inductor"."""
    import torch

    from felix.cli.comparison import torch_child

    torch_child.use_full_precision()
    latencies = {}
    for layout, (operator, params) in variants(workload).items():
        torch.compiler.reset()
        call, inputs = program(operator, params, "cuda")
        with torch.inference_mode():
            latencies[layout] = {
                "eager": torch_child.median_us(call, inputs, "cuda"),
                "inductor": torch_child.median_us(
                    torch_child.compiled(call, "cuda"), inputs, "cuda"
                ),
            }
    return latencies


def best(by_layout: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """The best latency of each kind over the layouts."""
    kinds = next(iter(by_layout.values()))
    return {kind: min(times[kind] for times in by_layout.values()) for kind in kinds}


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
    from felix.cli.comparison import torch_child
    from felix.measure import reference
    from felix.workloads import catalogue, torch_forms

    form = torch_forms.form(operator, params)
    arguments = reference.arguments(catalogue.build(operator, params).mod)
    return form.call, torch_child.random_inputs(form, arguments, device)
