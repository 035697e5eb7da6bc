"""Workloads as the command line takes them."""

from __future__ import annotations

import json
import pathlib

from felix import errors, workloads
from felix.task import Task

#: For operators, when no target is given.
DEFAULT_TARGET = "llvm"


def task(text: str, target: str | None) -> Task:
    """The task of a WORKLOAD argument: an operator with parameters, or a JSON file.

    A target that is given overrides that of the file.

    Raises:
        WorkloadError: it is neither, or not valid.
        TargetError: unknown target.
    """
    if operator(text) is not None:
        return workloads.parse(text, target or DEFAULT_TARGET)
    try:
        content = pathlib.Path(text).read_text()
    except UnicodeDecodeError:
        raise errors.WorkloadError(f"{text} is not a text file") from None
    except OSError as error:
        raise errors.WorkloadError(f"cannot read {text}: {error.strerror}") from error
    return Task.from_json(content, target or (None if _has_target(content) else DEFAULT_TARGET))


def operator(text: str) -> str | None:
    """A WORKLOAD argument that is no file: an operator with its parameters; else None."""
    if text.partition(":")[0] in workloads.OPERATORS:
        return text
    is_path = text.endswith(".json") or "/" in text or pathlib.Path(text).exists()
    return None if is_path else text


def _has_target(content: str) -> bool:
    """Whether a JSON text is a task, which names its target, and not a bare function."""
    try:
        task_or_function = json.loads(content)
    except (ValueError, RecursionError):
        return False  # `Task.from_json` says what is wrong
    return isinstance(task_or_function, dict) and "target" in task_or_function
