"""The template: matrix products by mma.sync, for one problem on one GPU."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import sympy

from felix.target import Hardware
from felix.templates import decisions as checks
from felix.templates.gemm.ampere import decisions as design
from felix.templates.gemm.ampere import dtypes, features, gather, packing, ptx
from felix.templates.gemm.ampere import program as programs
from felix.templates.gemm.ampere.decisions import Decisions, Limits
from felix.templates.gemm.problem import GemmProblem
from felix.templates.generated import GeneratedProgram
from felix.templates.template import Parameter, Template

#: Of the generator; a part of every key.
VERSION = 2
NAME = "gemm-mma"
_LEAST_ARCH, _LEAST_ARCH_OF_FLOAT8 = 80, 89


def unsuited(problem: GemmProblem) -> str | None:
    """Why the template cannot compute a problem on any GPU; None if it can."""
    pair = (problem.a.dtype, problem.b.dtype)
    instruction = dtypes.INSTRUCTIONS.get(pair)
    if instruction is None:
        return f"it multiplies {pair[0]} by {pair[1]}, which mma.sync does not"
    if (problem.accumulator == "int32") != pair[0].endswith("int8"):
        return f"its products of {pair[0]} are not summed in {problem.accumulator}"
    for dtype in (problem.output.dtype, *(read.dtype for read in problem.epilogue.reads)):
        if dtype not in dtypes.STORAGE:
            return f"it has a tensor of {dtype}, which is not converted"
    problem = packing.packed(problem).problem
    for operand in (problem.a, problem.b):
        of = operand.gather
        if of and gather.mask_bits(of, problem.phases) > gather.MOST_BITS:
            return f"its padded windows have more than {gather.MOST_BITS - 1} taps"
        strides = problem.batch_strides(operand)
        if of and gather.copy_bytes(operand, of, strides) is None:
            return "the places of its convolution's data are not one axis in memory"
    return None


def runs_on(arch: str) -> bool:
    """Whether kernels can be compiled for an architecture like "sm_86"."""
    return ptx.number(arch) >= _LEAST_ARCH


def templates(problem: GemmProblem, hardware: Hardware, arch: str) -> tuple[AmpereGemm, ...]:
    """The template for a suited problem; none where the architecture lacks its conversions."""
    lacks = ptx.uses_float8(problem) and not has_float8(arch)
    return (AmpereGemm(problem, hardware, arch),) if runs_on(arch) and not lacks else ()


def has_float8(arch: str) -> bool:
    """Whether an architecture converts float8."""
    return ptx.number(arch) >= _LEAST_ARCH_OF_FLOAT8


class AmpereGemm:
    """A `Template` of tiles, stages of cp.async, and parts of the sum; see `decisions`."""

    def __init__(self, problem: GemmProblem, hardware: Hardware, arch: str) -> None:
        """The template of a suited problem.

        Args:
            problem: one that is not `unsuited`.
            hardware: whose limits hold.
            arch: what kernels are compiled for, like "sm_86".
        """
        self._problem = problem
        self._computed = packing.packed(problem).problem
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
        return design.parameters(self._computed)

    def constraints(self) -> Sequence[tuple[str, sympy.Expr]]:
        """See `decisions.constraints`."""
        return design.constraints(self._computed, Decisions.symbols(), self._limits)

    def rows(self) -> Mapping[str, Mapping[str, sympy.Expr]]:
        """See `features.rows`."""
        return features.rows(self._problem, Decisions.symbols(), self._hardware, self._arch)

    def generate(self, decisions: Mapping[str, int]) -> GeneratedProgram:
        """The program of these values of the parameters.

        Raises:
            DecisionError: a value is none of its parameter's, or a constraint is not met.
        """
        d = Decisions.of(checks.integers(self.parameters, decisions))
        checks.check(design.constraints(self._computed, d, self._limits))
        return programs.program(self._problem, d, self._arch)

    @property
    def _limits(self) -> Limits:
        return Limits.of(self._hardware)


if TYPE_CHECKING:
    _: type[Template] = AmpereGemm
