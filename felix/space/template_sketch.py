"""Template sketches: a template's parameters as decision variables, its own formulas.

Each parameter is a choice of its own. Constraints, features and the program come from the template
(`felix.templates.template`); nothing here asks TVM.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import sympy
from numpy.typing import NDArray

from felix.errors import DecisionError, InvalidSchedule, NotScheduled
from felix.features.kind import FeatureKind
from felix.features.stores import RowName
from felix.space import coordinates, formula_cache, formulas, legality, sampling
from felix.space import variables as decision_variables
from felix.space.variables import Variable
from felix.target import Hardware
from felix.task import Task
from felix.templates import spec
from felix.templates.generated import GeneratedProgram
from felix.templates.template import Parameter, Template

#: What a sketch of a trace has and a template has not.
TRACE_ONLY = frozenset(
    """apply apply_stock concrete decisions_of mod postprocess schedule symbolic trace tvm_sample
    with_decisions""".split()
)


@dataclasses.dataclass(frozen=True, slots=True)
class TemplateSource(formulas.Source):
    """Of the features of `felix.templates.spec`."""

    template: Template

    kind = FeatureKind.TEMPLATE
    names = spec.NAMES
    log = spec.LOG
    code = formula_cache.TEMPLATE_SOURCES

    def extract(self, structure: coordinates.Structure) -> formulas.Extracted:
        """One row for each kernel that is launched."""
        by_kernel = self.template.rows()
        rows = tuple(RowName(kernel, kernel) for kernel in by_kernel)
        values = [_in_order(kernel, features) for kernel, features in by_kernel.items()]
        return formulas.Extracted(rows, values, self.template.constraints())


def _in_order(kernel: str, features: Mapping[str, sympy.Expr]) -> tuple[sympy.Expr, ...]:
    """The features of a kernel as `spec` orders them.

    Raises:
        KeyError: a name is not one of `spec`: a defect of the template.
    """
    unknown = [name for name in features if name not in spec.NAMES]
    if unknown:
        raise KeyError(f"{kernel} has features that are not in the table: {unknown}")
    return tuple(sympy.sympify(features.get(name, 0)) for name in spec.NAMES)


class TemplateSketch:
    """A template of a task with its variables and formulas.

    Args:
        index: number among the sketches of the task.
        template: for the task's program.
        machine: limits and rates that the template's formulas use.
    """

    #: a template is generated for GPUs
    is_gpu = True
    #: no trace made it
    instructions = ()

    def __init__(self, task: Task, index: int, template: Template, machine: Hardware) -> None:
        self.task = task
        self.index = index
        self.template = template
        self.hardware = machine
        self.variables: tuple[Variable, ...] = tuple(
            _variable(number, parameter) for number, parameter in enumerate(template.parameters)
        )

    if not TYPE_CHECKING:  # type checkers say it before

        def __getattr__(self, name: str) -> Any:
            if name in TRACE_ONLY:
                raise NotScheduled(
                    f"{self.variant} is a template, which has no {name}: its kernels are "
                    "generated, not scheduled by TVM; felix.trace_sketches(task) lists the "
                    "sketches that have it"
                )
            raise AttributeError(f"TemplateSketch has no attribute {name!r}")

    def __repr__(self) -> str:
        return (
            f"TemplateSketch({self.task.name}, {self.index}, {self.variant}, "
            f"{len(self.variables)} variables)"
        )

    @property
    def variant(self) -> str:
        """The template's name."""
        return self.template.name

    @functools.cached_property
    def key(self) -> str:
        """Hash of workload, target and template, the same in every process."""
        text = "\n".join([self.task.key, self.template.name, self.template.key])
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    @functools.cached_property
    def formulas(self) -> formulas.Formulas:
        """Feature formulas and constraints, of one structure."""
        key = f"{self.key}-{self.hardware}-{[(v.name, v.domain) for v in self.variables]}"
        return formulas.Formulas(TemplateSource(self.variables, key, self.template))

    def values(self, decisions: Sequence[int]) -> dict[str, int]:
        """Decisions by the names of the parameters.

        Raises:
            DecisionError: wrong length, or a value outside of its parameter's domain.
        """
        decision_variables.check(self.variables, decisions)
        return {v.name: int(d) for v, d in zip(self.variables, decisions, strict=True)}

    def program(self, decisions: Sequence[int]) -> GeneratedProgram:
        """What is measured: the program that the template makes of these decisions.

        Raises:
            DecisionError: wrong length, or a value outside of its parameter's domain.
            InvalidSchedule: a constraint is not met.
        """
        values = self.values(decisions)
        try:
            return self.template.generate(values)
        except DecisionError as error:
            raise InvalidSchedule(f"{self.variant}: {error}") from error

    def is_applicable(self, decisions: Sequence[int]) -> bool:
        """Whether these decisions meet the template's constraints.

        Raises:
            DecisionError: wrong length, or a value outside of its parameter's domain.
        """
        decision_variables.check(self.variables, decisions)
        bounds = self.formulas.constraints_exact(np.asarray([decisions], np.int64))
        return bool(legality.is_legal(bounds)[0])

    def sample(
        self, n: int, seed: int = 0, max_structures: int = sampling.MAX_STRUCTURES
    ) -> NDArray[np.int64]:
        """n legal rows of decisions [n, n_variables], distinct while the space has enough.

        Deterministic under the seed. A template has one structure.

        Raises:
            InvalidSchedule: the template has no legal decisions.
        """
        decided = self.variables, self.formulas
        return sampling.sample(*decided, lambda _: None, n, seed, max_structures, self)


def _variable(number: int, parameter: Parameter) -> Variable:
    return Variable(
        name=parameter.name,
        kind="choice",
        domain=tuple(parameter.domain),
        group=number,
        extent=None,
        part=0,
        structural=False,
        log_scale=parameter.log_scale,
        label=parameter.label,
    )
