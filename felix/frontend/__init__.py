"""Models into tasks: PyTorch modules and ONNX files as fused tensor programs with weights.

The model is imported into TVM Relax with its parameters as inputs (their values do not matter
for tuning), operators are lowered to TIR and fused as TVM's own pipeline does, and every
distinct fused program becomes one `Task` whose weight is the number of times it is called.
A program outside what Felix tunes (sorting, say) is left out and logged.
"""

from __future__ import annotations

import importlib
import logging
import pathlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import tvm
from tvm import relax
from tvm.s_tir import meta_schedule

from felix import errors, names, target, task
from felix.frontend import memory
from felix.tir import grammar

if TYPE_CHECKING:
    import torch

_log = logging.getLogger(__name__)


def extract_tasks(
    model: torch.nn.Module,
    args: Sequence[Any],
    target: target.TargetLike = "llvm",
    *,
    kwargs: Mapping[str, Any] | None = None,
) -> list[task.Task]:
    """The distinct fused programs of a PyTorch module, most float operations first.

    Args:
        model: the module; exported in inference mode with `torch.export`.
        args: example inputs; their shapes become the tasks' shapes.
        target: what to tune for.
        kwargs: example keyword inputs.

    Raises:
        WorkloadError: torch cannot export the module, or TVM cannot import it.
        TargetError: unknown target.
    """
    full = _parse(target)
    return _tasks(_from_torch(model, tuple(args), dict(kwargs or {})), full)


def extract_tasks_onnx(
    model: str | pathlib.Path | bytes,
    target: target.TargetLike = "llvm",
    *,
    shapes: Mapping[str, Sequence[int]] | None = None,
) -> list[task.Task]:
    """The distinct fused programs of an ONNX model, most float operations first.

    Args:
        model: path of the file, or its bytes. Data in other files are read from the folder of
            the file; bytes that refer to other files are refused.
        target: what to tune for.
        shapes: shapes of inputs whose extents the file leaves open.

    Raises:
        WorkloadError: the package onnx is not installed, the file cannot be read, the shapes do
            not fit it, or TVM cannot import it.
        TargetError: unknown target.
    """
    full = _parse(target)
    return _tasks(_from_onnx(model, shapes), full)


def _parse(spec: target.TargetLike) -> tvm.target.Target:
    return target.parse(spec)


def _from_torch(
    model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tvm.IRModule:
    import torch
    from tvm.relax.frontend.torch import from_exported_program

    if not isinstance(model, torch.nn.Module):
        raise errors.WorkloadError(
            f"extract_tasks needs a torch.nn.Module, got {type(model).__name__}"
        )
    was_training = model.training
    try:
        with torch.no_grad():
            program = torch.export.export(model.eval(), args, kwargs)
            imported = from_exported_program(program, keep_params_as_input=True)
    except (*grammar.TVM_ERRORS, AssertionError, ImportError) as error:
        raise errors.WorkloadError(
            f"the PyTorch model cannot be imported: {grammar.first_line(error)}"
        ) from error
    finally:
        model.train(was_training)
    return relax.frontend.detach_params(imported)[0]


def _from_onnx(
    model: str | pathlib.Path | bytes, shapes: Mapping[str, Sequence[int]] | None
) -> tvm.IRModule:
    try:
        importlib.import_module("onnx")
    except ImportError as error:
        raise errors.WorkloadError(
            "reading ONNX models needs the package onnx: pip install onnx"
        ) from error
    onnx_model = importlib.import_module("felix.frontend.onnx_model")
    imported = onnx_model.to_relax(onnx_model.read(model), shapes)
    return relax.frontend.detach_params(imported)[0]


def _fuse(mod: tvm.IRModule, full: tvm.target.Target) -> tvm.IRModule:
    passes = tvm.transform.Sequential(
        [
            relax.transform.DecomposeOpsForInference(),
            relax.transform.CanonicalizeBindings(),
            # x @ transpose(w), as linear layers are exported, reads w as it lies.
            relax.transform.FuseTransposeMatmul(),
            relax.transform.LegalizeOps(),
            relax.transform.FoldConstant(),
            relax.transform.AnnotateTIROpPattern(),
            relax.transform.DeadCodeElimination(),
            relax.transform.FuseOps(),
            relax.transform.FuseTIR(),
        ]
    )
    with full, tvm.transform.PassContext(opt_level=3):
        return passes(mod)


def _tasks(mod: tvm.IRModule, full: tvm.target.Target) -> list[task.Task]:
    try:
        extracted = meta_schedule.relax_integration.extract_tasks(
            _fuse(mod, full), full, params={}
        )
    except (*grammar.TVM_ERRORS, AssertionError) as error:
        reason = "TVM finds no programs for its operators and shapes"
        if memory.is_short(error):
            reason = f"computing its constants {memory.message()}"
        raise errors.WorkloadError(f"the model cannot be lowered: {reason}") from error
    tasks = []
    for item in extracted:
        (func,) = item.dispatched[0].functions.values()
        name, weight = names.derived(str(item.task_name)), int(item.weight)
        try:
            tasks.append(task.Task.from_prim_func(func, full, name, weight, clamp=True))
        except errors.WorkloadError as error:
            _log.warning(
                "%s is left untuned: %s",
                name,
                _reason(error),
                extra={"action": "skip_task", "task": name},
            )
    return sorted(tasks, key=lambda t: t.flops * t.weight, reverse=True)


def _reason(error: errors.WorkloadError) -> str:
    """What the error says itself, without the words of TVM that it may end with."""
    text = str(error)
    return text.partition(": ")[0] if error.__cause__ is not None else text
