"""Networks whose device is elsewhere: tuned on a cluster, built here, run where the device is.

Each group runs the faster of Felix's best program and TVM's, as they were measured there. Nothing
is compared or timed here, and PyTorch's operators are no contender. `run.py` prepacks parameters
when it loads the network, and checks its outputs against those of the network as TVM builds it for
this machine's CPU without tuning.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from felix import target as targets
from felix.builder.cuda import embedded
from felix.database import store
from felix.network import (
    assembly,
    checking,
    executable,
    group_costs,
    groups,
    imported,
    optimize,
    outcomes,
    report,
)
from felix.network import deadline as deadlines
from felix.network.bundle import export
from felix.network.contenders import contest
from felix.network.passes import prepacking

#: What runs a call, for the report.
CALLS = "not run where it was built: run.py checks and times it"


def tune(
    model: imported.Model,
    folder: str | os.PathLike[str],
    request: outcomes.Request,
    target: targets.TargetLike,
    *,
    shapes: Mapping[str, Sequence[int]] | None = None,
    values: Mapping[str, Any] | None = None,
    fusion: str | None = None,
    allow_tf32: bool = False,
) -> report.Report:
    """Tune a network's programs with the request's pool, build it and write its artifact.

    Args:
        model: the path or bytes of an ONNX file, or a program exported with its inputs.
        folder: of the artifact.
        request: how unknown tasks are tuned.
        target, shapes, values, fusion, allow_tf32: as `felix.optimize` takes them.

    Returns:
        See `write`.

    Raises:
        FelixError: as `felix.optimize` and `write`.
    """
    known = store.Store()
    full = targets.parse(target)
    grouping = group_costs.grouping(fusion, full, known, allow_tf32)
    placed = imported.placed(model, (), {}, "cpu")
    network = imported.read(*placed, full, shapes, grouping, "cpu", values)
    network = dataclasses.replace(network, allow_tf32=allow_tf32)
    every = groups.of(network.lowered, full, allow_tf32=allow_tf32)
    deadline = deadlines.Deadline(request.begun_s, request.seconds)
    gathered = outcomes.within(deadline, len(every), groups.tasks(every), known, request, {})
    return write(network, every, gathered, folder)


def write(
    network: imported.Network,
    every: Sequence[groups.Group],
    gathered: outcomes.Outcomes,
    folder: str | os.PathLike[str],
    begin_step: Callable[[str], None] = lambda step: None,
) -> report.Report:
    """Build a network, and write its artifact without running it.

    Args:
        network: the network, its examples on the CPU.
        every: its groups (`groups.of`).
        gathered: what is known of their tasks.
        folder: of the artifact.
        begin_step: called with what is done from now on.

    Returns:
        What ships; without an error and without times of whole calls.

    Raises:
        MeasureError: a program cannot be compiled here.
        TuningError: outputs of an ONNX file differ from its judge's.
        OutputError: the folder cannot be written, or there is no linker.
    """
    shipped = optimize.chosen_programs(every, gathered, contest.Contest(network, None))
    begin_step("building the network")
    runs = contest.runs(shipped)
    mod = prepacking.prepack(assembly.assemble(network.lowered, runs, runs_here=False))
    compiled = executable.compile_network(mod, network.target)
    by, expected = _expected(network, begin_step)
    content = export.Content(
        executable=compiled,
        parameters=network.imported.parameters,
        outputs=expected,
        prepacks=any(each.name_hint == prepacking.TRANSFORM for each in mod.get_global_vars()),
        cubins=assembly.cubins(runs) if embedded.is_needed() else {},
    )
    summary = report.Report(
        network=network.name,
        target=str(network.target.kind.name),
        groups=shipped,
        pytorch={name: len(forms) for name, forms in network.imported.pytorch.items()},
        reason=gathered.reason,
        tuning_s=gathered.elapsed_s,
        calls=CALLS,
        judged_by=by,
    )
    begin_step("writing the network")
    export.write(network, content, summary, folder)
    return summary


def _expected(
    network: imported.Network, begin_step: Callable[[str], None]
) -> tuple[str | None, Sequence[torch.Tensor]]:
    """Who judged a network, and its outputs: the model's own, or the judge's of an ONNX file.

    The outputs of an ONNX file's build for this machine's CPU must be the judge's.
    """
    if network.expected is not None and network.ask_reference is None:
        return None, network.expected
    begin_step("running the model on the CPU")
    on_cpu = checking.judged(dataclasses.replace(network, target=targets.parse("llvm")))
    return on_cpu.judged_by, on_cpu.expected or assembly.untuned_outputs(on_cpu)
