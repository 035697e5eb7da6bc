"""Models into tasks: PyTorch modules and ONNX files as fused tensor programs with weights.

In: a PyTorch module, an ONNX file.
Out: tasks with weights, a Relax module.
From: users, `network`, `server`.

A model is imported into TVM Relax with its parameters as inputs (`import_torch`, `import_onnx`),
its operators are lowered to TIR and grouped (`lowered`), and every distinct program becomes one
`Task` whose weight is the number of times it is called (`model_tasks`). A program outside what
Felix tunes (sorting, say) is left out and logged.
"""

from __future__ import annotations

import pathlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from felix import errors, task
from felix import target as targets
from felix.frontend.imported import Calling, ImportedModel, TensorSpec
from felix.frontend.model_tasks import ModelTask, ModelTasks, calls, model_tasks
from felix.frontend.programs.lowering import Fusion, Grouping, fusion_for, lowered
from felix.frontend.programs.outlining import meaning as rewriting_of
from felix.frontend.programs.planning.graph import Schedules

if TYPE_CHECKING:
    import torch
    import tvm

__all__ = [
    "Calling",
    "Fusion",
    "Grouping",
    "ImportedModel",
    "ModelTask",
    "ModelTasks",
    "Schedules",
    "TensorSpec",
    "calls",
    "extract_tasks",
    "extract_tasks_onnx",
    "fusion_for",
    "import_onnx",
    "import_torch",
    "lowered",
    "model_tasks",
    "rewriting_of",
]  # fmt: skip


def extract_tasks(
    model: torch.nn.Module,
    args: Sequence[Any],
    target: targets.TargetLike = "llvm",
    *,
    kwargs: Mapping[str, Any] | None = None,
    allow_tf32: bool = False,
) -> list[task.Task]:
    """The distinct fused programs of a PyTorch module, most float operations first.

    Args:
        model: the module; exported in inference mode with `torch.export`.
        args: example inputs; their shapes become the tasks' shapes.
        target: what to tune for.
        kwargs: example keyword inputs.
        allow_tf32: products of float32 may be computed in TF32 on a GPU (`Task.allowing_tf32`).

    Raises:
        WorkloadError: torch cannot export the module, or TVM cannot import it.
        TargetError: unknown target.
    """
    full = targets.parse(target)
    return _tasks(import_torch(model, args, kwargs), full, allow_tf32)


def extract_tasks_onnx(
    model: str | pathlib.Path | bytes,
    target: targets.TargetLike = "llvm",
    *,
    shapes: Mapping[str, Sequence[int]] | None = None,
    values: Mapping[str, Any] | None = None,
    allow_tf32: bool = False,
) -> list[task.Task]:
    """The distinct fused programs of an ONNX model, most float operations first.

    Args:
        model: path of the file, or its bytes. Data in other files are read from the folder of
            the file; bytes that refer to other files are refused.
        target: what to tune for.
        shapes: shapes of inputs whose extents the file leaves open.
        values: values of inputs that are the same in every call; they are inputs no more. Shapes,
            axes and the like must be known so.
        allow_tf32: products of float32 may be computed in TF32 on a GPU (`Task.allowing_tf32`).

    Raises:
        WorkloadError: the package onnx is not installed, the file cannot be read, the shapes do
            not fit it, or TVM cannot import it.
        TargetError: unknown target.
    """
    full = targets.parse(target)
    return _tasks(import_onnx(model, shapes, values), full, allow_tf32)


def import_torch(
    model: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any] | None = None
) -> ImportedModel:
    """Import a PyTorch module in inference mode, for the shapes of example arguments.

    Args:
        model: the module; its parameters are shared, not copied, where folding leaves them.
        args: example inputs, nested as the module takes them; what is no tensor is a constant.
        kwargs: example keyword inputs.

    Raises:
        WorkloadError: torch cannot export the module, it changes buffers or inputs, its control
            flow depends on data, or TVM cannot import it.
    """
    from felix.frontend.pytorch import importer

    return importer.import_torch(model, args, kwargs)


def import_onnx(
    model: str | pathlib.Path | bytes,
    shapes: Mapping[str, Sequence[int]] | None = None,
    values: Mapping[str, Any] | None = None,
) -> ImportedModel:
    """Import an ONNX model; see `extract_tasks_onnx`.

    Raises:
        WorkloadError: the package onnx is not installed, the file cannot be read, the shapes do
            not fit it, or TVM cannot import it.
    """
    try:
        import onnx  # noqa: F401
    except ImportError as error:
        raise errors.WorkloadError(
            "reading ONNX models needs the package onnx: pip install onnx"
        ) from error
    from felix.frontend.onnx import importer

    return importer.import_onnx(model, shapes, values)


def _tasks(model: ImportedModel, full: tvm.target.Target, allow_tf32: bool) -> list[task.Task]:
    read = model_tasks(lowered(model, full), full, allow_tf32=allow_tf32)
    return [item.task for item in read.tasks]
