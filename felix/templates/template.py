"""What a template is: parameters, their values, what is legal, formulas, and a generator.

A template knows one problem (the extents, layouts, dtypes and epilogue of a task's program) and
says everything about it as expressions in its parameters, so that search, cost model and
measuring treat it as any sketch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, Self

import sympy

from felix import errors
from felix.symbolic import expr
from felix.templates.generated import GeneratedProgram


@dataclasses.dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of a template: its name, the values it may take, ascending, and its meaning.

    Powers of two and other sizes are searched on a logarithmic scale, choices are not.
    """

    name: str
    domain: tuple[int, ...]
    log_scale: bool
    label: str


class Template(Protocol):
    """A kernel that is generated from parameters, for one problem."""

    @property
    def name(self) -> str:
        """The template and its variant, like "gemm-wgmma"; a part of a record."""
        ...

    @property
    def key(self) -> str:
        """Hash of the template's version and its problem, the same in every process."""
        ...

    @property
    def parameters(self) -> Sequence[Parameter]: ...

    def constraints(self) -> Sequence[tuple[str, sympy.Expr]]:
        """What is limited, and an expression in the parameters' names that is legal where <= 0.

        Symbols are `sympy.Symbol(name, integer=True, positive=True)`.
        """
        ...

    def rows(self) -> Mapping[str, Mapping[str, sympy.Expr]]:
        """Features by name, for each kernel that is launched; what is missing is 0.

        The names are those of `felix.templates.spec`.
        """
        ...

    def generate(self, decisions: Mapping[str, int]) -> GeneratedProgram:
        """The program of these values of the parameters.

        Raises:
            DecisionError: a constraint is not met.
        """
        ...


@dataclasses.dataclass(frozen=True, slots=True)
class Matching:
    """The templates of a program, and sentences why it has no others."""

    templates: tuple[Template, ...] = ()
    reasons: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class Decisions:
    """Values of parameters, integers or expressions; a template adds its own as fields.

    What follows from them is one function of integers (for generating source) and of expressions
    (for constraints and features), so the two cannot differ.
    """

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
