"""What a template is: parameters, what is legal, formulas, and a generator.

A template knows one problem (the extents, layouts, dtypes and epilogue of a task's program) and
says everything about it as expressions in its parameters, so that search, cost model and
measuring treat it as any sketch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Protocol

import sympy

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
