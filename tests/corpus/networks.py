"""What becomes of all tasks of a model, PyTorch's own (`torch:NAME`) or its ONNX export's."""

from __future__ import annotations

import dataclasses
import io
import warnings
from collections.abc import Sequence
from typing import Any

import torch

from felix import errors, frontend
from felix.task import Task
from tests.corpus import models, outcome

#: Sketches compared of a task.
MAX_SKETCHES = 2


@dataclasses.dataclass(frozen=True, slots=True)
class Model:
    """A model in one form: its tasks, and what the import left out or why it refused all."""

    name: str
    tasks: Sequence[Task] = ()
    left_out: Sequence[str] = ()
    refused: str | None = None


def names() -> list[str]:
    """Every model in every form."""
    return [f"{form}:{name}" for form in ("torch", "onnx") for name in models.models()]


def read(name: str, target: str) -> Model:
    """A model in the form that its name begins with."""
    form, _, model_name = name.partition(":")
    torch.manual_seed(0)
    model, inputs = models.models()[model_name]()
    with outcome.logged("felix.frontend") as left_out:
        try:
            if form == "torch":
                tasks = frontend.extract_tasks(model.eval(), inputs, target)
            else:
                tasks = frontend.extract_tasks_onnx(_exported(model.eval(), inputs), target)
        except (errors.FelixError, torch.onnx.errors.OnnxExporterError) as error:
            return Model(name, refused=str(error))
    return Model(name, tasks, left_out)


def _exported(model: torch.nn.Module, inputs: tuple[Any, ...]) -> bytes:
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(model, inputs, file, dynamo=False, opset_version=17)
    return file.getvalue()


def of(name: str, target: str, rows: int = 1) -> outcome.Outcome:
    """Compare rows of the sketches of every task of a model with TVM; tasks left out are named."""
    model, refused = read(name, target), outcome.Kind.REFUSED
    if model.refused is not None:
        return outcome.Outcome(name, target, refused, message=model.refused)
    results = [
        outcome.of_task(task.name, target, lambda task=task: task, rows, MAX_SKETCHES)
        for task in model.tasks
    ]
    results += [outcome.Outcome("import", target, refused, message=m) for m in model.left_out]
    return outcome.joined(name, target, results)
