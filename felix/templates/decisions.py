"""Values of a template's parameters: by name, as symbols, and whether they may be generated."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Self

from felix import errors
from felix.symbolic import expr
from felix.templates.template import Parameter


@dataclasses.dataclass(frozen=True, slots=True)
class Decisions:
    """Values of parameters, integers or expressions; a template adds its own as fields."""

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
        """From values by name."""
        return cls(**{field.name: values[field.name] for field in dataclasses.fields(cls)})

    @classmethod
    def symbols(cls) -> Self:
        """The parameters as symbols."""
        return cls(*(expr.variable(field.name) for field in dataclasses.fields(cls)))


def integers(parameters: Sequence[Parameter], values: Mapping[str, Any]) -> dict[str, int]:
    """Values by name, for a generator.

    Raises:
        DecisionError: one is missing, or is none of its parameter's.
    """
    for parameter in parameters:
        value = values.get(parameter.name)
        if value not in parameter.domain:
            domain = ", ".join(map(str, parameter.domain))
            raise errors.DecisionError(f"{parameter.name} is one of {domain}, got {value}")
    return {parameter.name: int(values[parameter.name]) for parameter in parameters}


def check(constraints: Sequence[tuple[str, Any]]) -> None:
    """Raise a DecisionError if a constraint, by name, is not met: it is where it is <= 0."""
    for name, value in constraints:
        if value > 0:
            raise errors.DecisionError(f"these decisions break a limit: {name}")
