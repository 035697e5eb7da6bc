"""The templates: matrix products by mma.sync, or in float32 by threads, on one GPU; and what they
have in common with other templates of products."""

from __future__ import annotations

import abc
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, Generic, TypeVar

import sympy

from felix.target import Hardware
from felix.templates import template
from felix.templates.gemm.ampere import decisions as design
from felix.templates.gemm.ampere import (
    features,
    instructions,
    layout,
    packing,
    program,
    simt,
    simt_program,
)
from felix.templates.gemm.problem import GemmProblem
from felix.templates.generated import GeneratedProgram
from felix.templates.template import Parameter, Template

_LEAST_ARCH, _LEAST_ARCH_OF_FLOAT8 = 80, 89
_FLOAT32 = "float32"

D = TypeVar("D", bound=template.Decisions)


class ProductTemplate(Template, abc.ABC, Generic[D]):
    """A `Template` whose formulas and program are functions of its `Decisions`.

    Attributes:
        name: as in `Template`.
        version: a part of every key; increased whenever decisions make another program.
        decisions: values of its parameters.
    """

    name: str
    version: int
    decisions: type[D]

    def __init__(self, problem: GemmProblem, hardware: Hardware, arch: str) -> None:
        """The template of a problem that suits it.

        Args:
            hardware: whose limits hold.
            arch: what kernels are compiled for, like "sm_86".
        """
        self.problem = problem
        self.hardware = hardware
        self.arch = arch

    @property
    def key(self) -> str:
        of_problem = f"{self.problem.identity}|{self.arch}|{self._limits!r}"
        return hashlib.sha256(f"{self.name}|{self.version}|{of_problem}".encode()).hexdigest()

    def constraints(self) -> Sequence[tuple[str, sympy.Expr]]:
        """As in `Template`."""
        pairs = self._constraints(self.decisions.symbols())
        return [(name, sympy.sympify(value)) for name, value in pairs]

    def generate(self, decisions: Mapping[str, int]) -> GeneratedProgram:
        """The program of these values of the parameters.

        Raises:
            DecisionError: a value is none of its parameter's, or a constraint is not met.
        """
        d = self.decisions.of(template.integers(self.parameters, decisions))
        template.check(self._constraints(d))
        return self._program(d)

    @property
    def _limits(self) -> Any:
        """Those of the hardware that constraints have."""
        return design.Limits.of(self.hardware)

    @abc.abstractmethod
    def _constraints(self, d: D) -> Sequence[tuple[str, sympy.Expr]]: ...

    @abc.abstractmethod
    def _program(self, d: D) -> GeneratedProgram: ...


class AmpereGemm(ProductTemplate[design.Decisions]):
    """Tiles, stages of cp.async, and parts of the sum; see `decisions`."""

    name = "gemm-mma"
    version = 2
    decisions = design.Decisions

    @property
    def parameters(self) -> Sequence[Parameter]:
        return design.parameters(self._computed)

    def rows(self) -> Mapping[str, Mapping[str, sympy.Expr]]:
        d = design.Decisions.symbols()
        return features.rows(self.problem, d, self.hardware, self.arch)

    @property
    def _computed(self) -> GemmProblem:
        return packing.packed(self.problem).problem

    def _constraints(self, d: design.Decisions) -> Sequence[tuple[str, sympy.Expr]]:
        return design.constraints(self._computed, d, self._limits)

    def _program(self, d: design.Decisions) -> GeneratedProgram:
        return program.program(self.problem, d, self.arch)


class SimtGemm(ProductTemplate[simt.Decisions]):
    """The same without tensor cores; see `simt`."""

    name = "gemm-simt"
    version = 1
    decisions = simt.Decisions

    @property
    def parameters(self) -> Sequence[Parameter]:
        return simt.parameters(self.problem)

    def rows(self) -> Mapping[str, Mapping[str, sympy.Expr]]:
        return simt.rows(self.problem, simt.Decisions.symbols(), self.hardware)

    def _constraints(self, d: simt.Decisions) -> Sequence[tuple[str, sympy.Expr]]:
        return simt.constraints(self.problem, d, self._limits)

    def _program(self, d: simt.Decisions) -> GeneratedProgram:
        return simt_program.program(self.problem, d, self.arch)


def unsuited(problem: GemmProblem) -> str | None:
    """Why mma.sync cannot compute a problem on any GPU; None if it can."""
    pair = (problem.a.dtype, problem.b.dtype)
    if pair not in instructions.INSTRUCTIONS:
        return f"it multiplies {pair[0]} by {pair[1]}, which mma.sync does not"
    if (problem.accumulator == "int32") != pair[0].endswith("int8"):
        return f"its products of {pair[0]} are not summed in {problem.accumulator}"
    if reason := unconverted(problem):
        return reason
    problem = packing.packed(problem).problem
    for operand in (problem.a, problem.b):
        of = operand.gather
        if of and layout.mask_bits(of, problem.phases) > layout.MOST_BITS:
            return f"its padded windows have more than {layout.MOST_BITS - 1} taps"
        if of and layout.copy_bytes(problem, operand) is None:
            return "the places of its convolution's data are not one axis in memory"
    return None


def unsuited_threads(problem: GemmProblem) -> str | None:
    """Why threads cannot compute a problem on any GPU; None if they can."""
    pair = (problem.a.dtype, problem.b.dtype)
    if pair != (_FLOAT32, _FLOAT32) or problem.accumulator != _FLOAT32:
        return f"it multiplies {pair[0]} by {pair[1]}, which has no template"
    if reason := unconverted(problem):
        return reason
    if problem.phases or problem.a.gather or problem.b.gather:
        return "convolutions in float32 have no template"
    return None


def unconverted(problem: GemmProblem) -> str | None:
    """Which tensor beside the operands has a type that is not converted; None if none has."""
    for dtype in (problem.output.dtype, *(read.dtype for read in problem.epilogue.reads)):
        if dtype not in instructions.STORAGE:
            return f"it has a tensor of {dtype}, which is not converted"
    return None


def runs_on(arch: str) -> bool:
    """Whether kernels can be compiled for an architecture like "sm_86"."""
    return instructions.number(arch) >= _LEAST_ARCH


def templates(problem: GemmProblem, hardware: Hardware, arch: str) -> tuple[AmpereGemm, ...]:
    """By mma.sync, for a suited problem; none where the architecture lacks its conversions."""
    converts = runs_on(arch) and has_conversions(problem, arch)
    return (AmpereGemm(problem, hardware, arch),) if converts else ()


def thread_templates(problem: GemmProblem, hardware: Hardware, arch: str) -> tuple[SimtGemm, ...]:
    """By threads, for a suited problem; none where the architecture lacks its conversions."""
    return (SimtGemm(problem, hardware, arch),) if has_conversions(problem, arch) else ()


def has_conversions(problem: GemmProblem, arch: str) -> bool:
    """Whether an architecture has those of the problem's tensors: not all have float8's."""
    is_new = instructions.number(arch) >= _LEAST_ARCH_OF_FLOAT8
    return is_new or not instructions.uses_float8(problem)
