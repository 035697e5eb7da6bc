"""A group of calls as PyTorch computes it: a list of function calls, as JSON.

Values are numbered: a form's inputs first, then the result of each call. The last call gives the
form's result. `felix.network.pytorch.functions` has the functions by their names, and runs forms
without Felix.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

#: The number of a value, {"constant": x}, or a list of numbers of values (concatenation).
Operand: TypeAlias = "int | dict[str, Any] | list[int]"


@dataclasses.dataclass(frozen=True, slots=True)
class TorchCall:
    """One call of a function of PyTorch.

    Attributes:
        function: its name in `felix.network.pytorch.functions`.
        operands: see `Operand`.
        options: further arguments by name, as JSON has them.
        dtype: element type of the result.
    """

    function: str
    operands: Sequence[Operand]
    options: Mapping[str, Any]
    dtype: str

    def renumbered(self, number_of: Callable[[int], int]) -> TorchCall:
        """The call with other numbers of values."""

        def moved(operand: Operand) -> Operand:
            if isinstance(operand, int):
                return number_of(operand)
            return list(map(number_of, operand)) if isinstance(operand, list) else operand

        return dataclasses.replace(self, operands=[moved(each) for each in self.operands])


@dataclasses.dataclass(frozen=True, slots=True)
class TorchForm:
    """Calls in the order of execution.

    Attributes:
        n_inputs: values that it takes.
        calls: the calls.
        allow_tf32: whether products of float32 may be computed in TF32.
    """

    n_inputs: int
    calls: Sequence[TorchCall]
    allow_tf32: bool = False

    def to_json(self) -> str:
        """The form as text; equal forms have equal texts."""
        fields = dataclasses.asdict(self)
        if not self.allow_tf32:
            del fields["allow_tf32"]
        return json.dumps(fields, sort_keys=True)

    @property
    def key(self) -> str:
        """Hash of the text."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()[:16]

    @property
    def function_name(self) -> str:
        """By which TVM calls what runs the form: equal forms have equal names."""
        return f"felix.pytorch.{self.key}"

    @property
    def functions(self) -> str:
        """Names of what is called, for people."""
        return ", ".join(call.function for call in self.calls)


def form_from_json(text: str) -> TorchForm:
    """What `to_json` wrote."""
    fields = json.loads(text)
    calls = [TorchCall(**call) for call in fields["calls"]]
    return TorchForm(fields["n_inputs"], calls, fields.get("allow_tf32", False))
