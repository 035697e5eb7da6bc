"""A task as run workers get it: data about its arguments and its check, and no program.

A builder derives it from the task's program (`reference_build`). Beside it comes a file with the
task's reference, whose suffix says what it holds:

- ".cubin": launch plan and cubin of the reference (`cuda.program_file`), for GPUs;
- ".so", ".ll": its library, or LLVM IR, for CPUs;
- ".outputs": the expected outputs (`expected`), where the builder has computed them.

Without a file, outputs are not checked.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
from typing import Any, Literal

from felix.measure.checking import reference

#: Version of the description and of the files beside it.
VERSION = 1
#: Of a description as text: some hundred bytes an argument.
MAX_BYTES = 256 << 10
#: Suffix of expected outputs that a builder has computed.
OUTPUTS = ".outputs"
_DTYPE = re.compile(r"bool|u?int\d+|b?float\d+\w*")
_ARCH = re.compile(r"sm_\d+[a-z]?")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """What measuring candidates of a task takes, beside its reference.

    Attributes:
        device: what they run on, "cpu" or "cuda".
        target: of a GPU its architecture, like "sm_90"; of a CPU its target as JSON, for which the
            probe of `cpu.contention` is built.
        arguments: tensor parameters, in order.
        tolerance: relative tolerance of `reference`.
        seed: of the inputs.
    """

    device: Literal["cpu", "cuda"]
    target: str
    arguments: tuple[reference.Argument, ...]
    tolerance: float
    seed: int

    def to_json(self) -> str:
        """One line.

        Raises:
            ValueError: it is too long.
        """
        return checked(json.dumps({"version": VERSION} | dataclasses.asdict(self)))

    @classmethod
    def from_json(cls, text: str) -> Description:
        """The description that `to_json` wrote.

        Raises:
            ValueError: it is none, too long, or of another version.
        """
        try:
            fields = json.loads(checked(text))
            version = fields.pop("version")
            if version == VERSION:
                arguments = tuple(map(_argument, fields.pop("arguments")))
                return _sound(cls(arguments=arguments, **fields))
        except (KeyError, TypeError, AttributeError, RecursionError):
            raise ValueError("what came is no description of a task") from None
        raise ValueError(f"a description of version {version!r}, not {VERSION}")


def checked(text: str) -> str:
    """A description's text; ValueError if it is too long."""
    if len(text) > MAX_BYTES:
        raise ValueError(f"a description of {len(text) >> 10} KiB is longer than any task's")
    return text


def _argument(fields: dict[str, Any]) -> reference.Argument:
    argument = reference.Argument(**{**fields, "shape": tuple(fields["shape"])})
    if not _DTYPE.fullmatch(argument.dtype):
        raise TypeError
    reference.np_dtype(argument.dtype)  # or a TypeError
    is_shape = all(type(extent) is int and extent >= 0 for extent in argument.shape)
    bound = argument.index_bound
    if not is_shape or not (bound is None or type(bound) is int):
        raise TypeError
    return argument


def _sound(task: Description) -> Description:
    """The description; TypeError where a field is of another type or out of range."""
    is_tolerance = isinstance(task.tolerance, int | float) and math.isfinite(task.tolerance)
    if task.device not in ("cpu", "cuda") or not isinstance(task.target, str):
        raise TypeError
    if task.device == "cuda" and not _ARCH.fullmatch(task.target):
        raise TypeError
    if not is_tolerance or task.tolerance < 0 or type(task.seed) is not int or task.seed < 0:
        raise TypeError
    return task
