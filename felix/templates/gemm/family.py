"""The GEMM templates of a program: it is recognised once, then the best that suits is taken."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import tvm

from felix.target import Hardware
from felix.templates.gemm import recognise
from felix.templates.gemm.ampere import template as ampere
from felix.templates.gemm.gemv import template as gemv
from felix.templates.gemm.hopper import template as hopper
from felix.templates.gemm.problem import GemmProblem
from felix.templates.template import Matching, Template
from felix.tir import tf32


@dataclasses.dataclass(frozen=True, slots=True)
class Generator:
    """What a module of templates offers.

    Attributes:
        runs_on: whether its kernels run on an architecture like "sm_90".
        unsuited: why a problem is not for it, a sentence about "it"; None if it is.
        templates: of a problem, for hardware and an architecture.
    """

    runs_on: Callable[[str], bool]
    unsuited: Callable[[GemmProblem], str | None]
    templates: Callable[[GemmProblem, Hardware, str], Sequence[Template]]


#: The fastest first.
GENERATORS: tuple[Generator, ...] = (
    Generator(hopper.runs_on, hopper.unsuited, hopper.templates),
    Generator(ampere.runs_on, ampere.unsuited, ampere.templates),
)

#: Without tensor cores, so of any width: searched beside the first of the others.
EXACT: tuple[Generator, ...] = (Generator(gemv.runs_on, gemv.unsuited, gemv.templates),)

#: Tensor cores multiply elements of at most so many bits without rounding them first.
WIDEST_BITS = 16


def of_program(mod: tvm.IRModule, arch: str, machine: Hardware) -> Matching:
    """The templates of the first generator that runs on the architecture and suits the problem,
    and those that multiply without tensor cores.

    Of programs all of whose tensors are wide no reason is said, unless they may use TF32.
    """
    on_cores = [each for each in GENERATORS if each.runs_on(arch)]
    exact = [each for each in EXACT if each.runs_on(arch)]
    if not on_cores and not exact:
        return Matching()
    allows_tf32 = tf32.allowed(mod["main"])
    dtypes = [str(param.dtype) for param in mod["main"].params]
    says_why = bool(on_cores) and (allows_tf32 or any(map(_is_narrow, dtypes)))
    problem = recognise.recognise(mod)
    if isinstance(problem, recognise.NotRecognised):
        return Matching(reasons=(problem.reason,) if says_why else ())
    made = [t for each in exact if each.unsuited(problem) is None
            for t in each.templates(problem, machine, arch)]  # fmt: skip
    matching = _on_tensor_cores(problem, on_cores, machine, arch, allows_tf32)
    reasons = matching.reasons if says_why else ()
    return Matching((*matching.templates, *made), reasons)


def _on_tensor_cores(
    problem: GemmProblem,
    generators: Sequence[Generator],
    machine: Hardware,
    arch: str,
    allows_tf32: bool,
) -> Matching:
    """The templates of the first generator that suits, or the reasons of all."""
    for operand in (problem.a, problem.b):
        if not _is_narrow(operand.dtype) and not (allows_tf32 and operand.dtype == "float32"):
            rounds = f"tensor cores would round its operands of {operand.dtype}"
            return Matching(reasons=(rounds,))
    reasons = []
    for each in generators:
        reason = each.unsuited(problem)
        made = () if reason else tuple(each.templates(problem, machine, arch))
        if made:
            return Matching(made)
        reasons.append(reason or f"there is no template of it for {arch}")
    return Matching(reasons=tuple(dict.fromkeys(reasons)))


def _is_narrow(dtype: str) -> bool:
    return bool(tvm.DataType(dtype).bits <= WIDEST_BITS)
