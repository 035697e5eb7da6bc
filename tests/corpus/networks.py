"""What becomes of all tasks of a model, PyTorch's own (`torch:NAME`) or its ONNX export's."""

from __future__ import annotations

import io
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from felix import errors, frontend
from felix.task import Task
from tests.corpus import models, outcome

FORMS = ("torch", "onnx")
#: Sketches compared of a task.
MAX_SKETCHES = 2


class _Skipped(logging.Handler):
    """Notes tasks that the import leaves out."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


@contextmanager
def _left_out() -> Iterator[list[str]]:
    handler = _Skipped()
    logger = logging.getLogger("felix.frontend")
    logger.addHandler(handler)
    try:
        yield handler.messages
    finally:
        logger.removeHandler(handler)


def names() -> list[str]:
    """Every model in every form."""
    return [f"{form}:{name}" for form in FORMS for name in models.models()]


def of(name: str, target: str, rows: int = 1) -> outcome.Outcome:
    """Compare rows of the sketches of every task of a model with TVM; tasks left out are named."""
    try:
        tasks, left_out = tasks_of(name, target)
    except errors.FelixError as error:
        return outcome.Outcome(name, target, outcome.Kind.REFUSED, message=str(error))
    results = [
        outcome.of_task(task.name, target, lambda task=task: task, rows, MAX_SKETCHES)
        for task in tasks
    ]
    results += [
        outcome.Outcome("import", target, outcome.Kind.REFUSED, message=m) for m in left_out
    ]
    return outcome.joined(name, target, results)


def tasks_of(name: str, target: str) -> tuple[list[Task], list[str]]:
    """The tasks of a model in the form that its name begins with, and what the import left out.

    Raises:
        FelixError: the model cannot be imported, or PyTorch cannot export it.
    """
    form, _, model_name = name.partition(":")
    torch.manual_seed(0)
    model, inputs = models.models()[model_name]()
    with _left_out() as messages:
        try:
            tasks = _tasks(form, model.eval(), inputs, target)
        except torch.onnx.errors.OnnxExporterError as error:
            raise errors.WorkloadError("torch cannot export the model") from error
    return tasks, messages


def _tasks(form: str, model: torch.nn.Module, inputs: tuple[Any, ...], target: str) -> list[Task]:
    if form == "torch":
        return frontend.extract_tasks(model, inputs, target)
    exported = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(model, inputs, exported, dynamo=False, opset_version=17)
    return frontend.extract_tasks_onnx(exported.getvalue(), target)
