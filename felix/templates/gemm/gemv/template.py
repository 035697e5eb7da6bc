"""The template: products of few rows, for one problem on one GPU."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import sympy

from felix.target import Hardware
from felix.templates import decisions as checks
from felix.templates.gemm.ampere import dtypes, ptx
from felix.templates.gemm.gemv import decisions as design
from felix.templates.gemm.gemv import features, program
from felix.templates.gemm.gemv.decisions import Decisions
from felix.templates.gemm.problem import GemmProblem
from felix.templates.generated import GeneratedProgram
from felix.templates.template import Parameter, Template

#: Of the generator; a part of every key.
VERSION = 1
NAME = "gemv"
_LEAST_ARCH, _LEAST_ARCH_OF_FLOAT8 = 70, 89
_DECISION_LIMITS = "registers_per_block max_threads_per_block shared_bytes_per_block".split()


def unsuited(problem: GemmProblem) -> str | None:
    """Why the template cannot compute a problem on any GPU; None if it can."""
    of_operands = [problem.a.dtype, problem.b.dtype]
    of_others = [problem.output.dtype, *(read.dtype for read in problem.epilogue.reads)]
    for dtype in (*of_operands, *of_others):
        if dtype not in dtypes.STORAGE:
            return f"it has a tensor of {dtype}, which is not converted"
    arithmetic = {dtypes.arithmetic(dtype) for dtype in of_operands}
    expected = dtypes.FLOAT if problem.accumulator == "float32" else dtypes.INT
    if arithmetic != {expected}:
        return f"its products are not summed in {problem.accumulator}"
    if problem.phases or problem.a.gather or problem.b.gather:
        return "it is a convolution"
    if _turned(problem) is None:
        return f"it has more than {design.MOST_ROWS} rows, or its matrix is not contiguous along k"
    return None


def runs_on(arch: str) -> bool:
    """Whether kernels can be compiled for an architecture like "sm_86"."""
    return ptx.number(arch) >= _LEAST_ARCH


def templates(problem: GemmProblem, hardware: Hardware, arch: str) -> tuple[Gemv, ...]:
    """The template for a suited problem; none where the architecture lacks its conversions."""
    least = _LEAST_ARCH_OF_FLOAT8 if ptx.uses_float8(problem) else _LEAST_ARCH
    turned = _turned(problem)
    return (Gemv(turned, hardware, arch),) if turned and ptx.number(arch) >= least else ()


def _turned(problem: GemmProblem) -> GemmProblem | None:
    """The problem as few rows by a matrix that is contiguous along k; None if it is none."""
    for each in (problem, problem.swapped):
        if each.m <= design.MOST_ROWS and (each.b.strides[2] == 1 or each.k == 1):
            return each
    return None


class Gemv:
    """A `Template` of threads along k and along columns; see `decisions`."""

    def __init__(self, problem: GemmProblem, hardware: Hardware, arch: str) -> None:
        """The template of a problem of few rows.

        Args:
            problem: one that is not `unsuited`, turned so that its rows are few.
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
        limits = [getattr(self._hardware, name) for name in _DECISION_LIMITS]
        text = f"{NAME}|{VERSION}|{self._problem.identity}|{self._arch}|{limits!r}"
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def parameters(self) -> Sequence[Parameter]:
        return design.parameters(self._problem)

    def constraints(self) -> Sequence[tuple[str, sympy.Expr]]:
        """See `decisions.constraints`."""
        return design.constraints(self._problem, Decisions.symbols(), self._hardware)

    def rows(self) -> Mapping[str, Mapping[str, sympy.Expr]]:
        """See `features.rows`."""
        return features.rows(self._problem, Decisions.symbols(), self._hardware)

    def generate(self, decisions: Mapping[str, int]) -> GeneratedProgram:
        """The program of these values of the parameters.

        Raises:
            DecisionError: a value is none of its parameter's, or a constraint is not met.
        """
        d = Decisions.of(checks.integers(self.parameters, decisions))
        checks.check(design.constraints(self._problem, d, self._hardware))
        return program.program(self._problem, d, self._arch)


if TYPE_CHECKING:
    _: type[Template] = Gemv
