"""The template: matrix products in float32 by threads, for one problem on one GPU."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import sympy

from felix.target import Hardware
from felix.templates import decisions as checks
from felix.templates.gemm.ampere import dtypes, ptx
from felix.templates.gemm.ampere import template as ampere
from felix.templates.gemm.ampere.decisions import Limits
from felix.templates.gemm.problem import GemmProblem
from felix.templates.gemm.simt import decisions as design
from felix.templates.gemm.simt import features
from felix.templates.gemm.simt import program as programs
from felix.templates.gemm.simt.decisions import Decisions
from felix.templates.generated import GeneratedProgram
from felix.templates.template import Parameter, Template

#: Of the generator; a part of every key.
VERSION = 1
NAME = "gemm-simt"
DTYPE = "float32"


def unsuited(problem: GemmProblem) -> str | None:
    """Why the template cannot compute a problem on any GPU; None if it can."""
    pair = (problem.a.dtype, problem.b.dtype)
    if pair != (DTYPE, DTYPE) or problem.accumulator != DTYPE:
        return f"it multiplies {pair[0]} by {pair[1]}, which has no template"
    for dtype in (problem.output.dtype, *(read.dtype for read in problem.epilogue.reads)):
        if dtype not in dtypes.STORAGE:
            return f"it has a tensor of {dtype}, which is not converted"
    if problem.phases or problem.a.gather or problem.b.gather:
        return "convolutions in float32 have no template"
    return None


def runs_on(arch: str) -> bool:
    """Whether kernels can be compiled for an architecture like "sm_86"."""
    return ampere.runs_on(arch)


def templates(problem: GemmProblem, hardware: Hardware, arch: str) -> tuple[SimtGemm, ...]:
    """The template for a suited problem; none where the architecture lacks its conversions."""
    lacks = ptx.uses_float8(problem) and not ampere.has_float8(arch)
    return () if lacks else (SimtGemm(problem, hardware, arch),)


class SimtGemm:
    """A `Template` of tiles, stages of cp.async, and parts of the sum; see `decisions`."""

    def __init__(self, problem: GemmProblem, hardware: Hardware, arch: str) -> None:
        """The template of a suited problem.

        Args:
            problem: one that is not `unsuited`.
            hardware: whose limits hold.
            arch: what kernels are compiled for, like "sm_86".
        """
        self._problem = problem
        self._hardware = hardware
        self._arch = arch

    @property
    def name(self) -> str:
        return NAME

    @property
    def key(self) -> str:
        text = f"{NAME}|{VERSION}|{self._problem.identity}|{self._arch}|{self._limits!r}"
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def parameters(self) -> Sequence[Parameter]:
        return design.parameters(self._problem)

    def constraints(self) -> Sequence[tuple[str, sympy.Expr]]:
        """See `decisions.constraints`."""
        return design.constraints(self._problem, Decisions.symbols(), self._limits)

    def rows(self) -> Mapping[str, Mapping[str, sympy.Expr]]:
        """See `features.rows`."""
        return features.rows(self._problem, Decisions.symbols(), self._hardware)

    def generate(self, decisions: Mapping[str, int]) -> GeneratedProgram:
        """The program of these values of the parameters.

        Raises:
            DecisionError: a value is none of its parameter's, or a constraint is not met.
        """
        d = Decisions.of(checks.integers(self.parameters, decisions))
        checks.check(design.constraints(self._problem, d, self._limits))
        return programs.program(self._problem, d, self._arch)

    @property
    def _limits(self) -> Limits:
        return Limits.of(self._hardware)


if TYPE_CHECKING:
    _: type[Template] = SimtGemm
