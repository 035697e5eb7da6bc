"""Workloads as the command line takes them. Reads the catalogue and files; feeds commands."""

from __future__ import annotations

import pathlib

from felix import errors, workloads
from felix.task import Task


def task(text: str, target: str) -> Task:
    """The task of a WORKLOAD argument: an operator with parameters, or a JSON file.

    Raises:
        WorkloadError: it is neither, or not valid.
        TargetError: unknown target.
    """
    name = text.partition(":")[0]
    if name in workloads.OPERATORS or not _is_path(text):
        return workloads.parse(text, target)
    try:
        content = pathlib.Path(text).read_text()
    except UnicodeDecodeError:
        raise errors.WorkloadError(f"{text} is not a text file") from None
    except OSError as error:
        raise errors.WorkloadError(f"cannot read {text}: {error.strerror}") from error
    return Task.from_json(content, target)


def _is_path(text: str) -> bool:
    return text.endswith(".json") or "/" in text or pathlib.Path(text).exists()
