"""Which templates a program has on a target: the one place where templates are listed.

Of a matrix product, which is recognised once, the best that suits is taken.
"""

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
        rounds: whether it multiplies operands of float32 in TF32.
    """

    runs_on: Callable[[str], bool]
    unsuited: Callable[[GemmProblem], str | None]
    templates: Callable[[GemmProblem, Hardware, str], Sequence[Template]]
    rounds: bool = True


_SIMT = Generator(ampere.runs_on, ampere.unsuited_threads, ampere.thread_templates, rounds=False)
#: The fastest first.
GENERATORS: tuple[Generator, ...] = (
    Generator(hopper.runs_on, hopper.unsuited, hopper.templates),
    Generator(ampere.runs_on, ampere.unsuited, ampere.templates),
    _SIMT,
)
#: For few rows: searched beside the first of the others.
BESIDE = Generator(gemv.runs_on, gemv.unsuited, gemv.templates, rounds=False)


#: Tensor cores multiply elements of at most so many bits without rounding them first.
WIDEST_BITS = 16


def templates_of(mod: tvm.IRModule, target: tvm.target.Target, machine: Hardware) -> Matching:
    """The templates of a task's program; none on a CPU."""
    is_gpu = target.kind.name == "cuda"
    return of_program(mod, str(target.attrs["arch"]), machine) if is_gpu else Matching()


def of_program(mod: tvm.IRModule, arch: str, machine: Hardware) -> Matching:
    """The templates of the first generator that runs on the architecture and suits the problem,
    and those of products of few rows.

    Where TF32 is allowed but tensor cores need copies of the operands, those of float32, too.

    Of programs none of whose tensors is narrow or float32 nothing is said.
    """
    dtypes = [str(param.dtype) for param in mod["main"].params]
    runs = any(each.runs_on(arch) for each in (*GENERATORS, BESIDE))
    if not runs or not any(_is_narrow(dtype) or dtype == "float32" for dtype in dtypes):
        return Matching()
    problem = recognise.recognise(mod)
    if isinstance(problem, recognise.NotRecognised):
        return Matching(reasons=(problem.reason,))
    may_round = tf32.allowed(mod["main"])
    first = _first_of(GENERATORS, problem, arch, machine, may_round)
    others = (BESIDE, _SIMT) if may_round and _copies_float32(problem) else (BESIDE,)
    beside = [_first_of((each,), problem, arch, machine, may_round) for each in others]
    templates = (*first.templates, *(made for each in beside for made in each.templates))
    return Matching(templates, () if templates else first.reasons)


def _first_of(
    generators: Sequence[Generator],
    problem: GemmProblem,
    arch: str,
    machine: Hardware,
    may_round: bool,
) -> Matching:
    """The templates of the first generator that suits, or the reasons of all that run."""
    reasons = []
    for each in generators:
        if not each.runs_on(arch):
            continue
        reason = _rounded(problem, each.rounds, may_round) or each.unsuited(problem)
        made = () if reason else tuple(each.templates(problem, machine, arch))
        if made:
            return Matching(made)
        reasons.append(reason or f"there is no template of it for {arch}")
    return Matching(reasons=tuple(dict.fromkeys(reasons)))


def _rounded(problem: GemmProblem, rounds: bool, may_round: bool) -> str | None:
    """Why a generator must not multiply the operands, None if it may.

    Args:
        rounds: whether it rounds float32 to TF32, and whatever else is wide.
        may_round: float32 may be rounded so.
    """
    for operand in (problem.a, problem.b):
        allowed = _is_narrow(operand.dtype) or (may_round and operand.dtype == "float32")
        if rounds and not allowed:
            return f"tensor cores would round its operands of {operand.dtype}"
    return None


def _copies_float32(problem: GemmProblem) -> bool:
    """Whether tensor cores cannot read operands of float32 where they lie: not along k.

    Of few rows, copying the other operand takes longer than the product.
    """
    operands = (problem.a, problem.b)
    return any(each.dtype == "float32" and each.strides[2] != 1 for each in operands)


def _is_narrow(dtype: str) -> bool:
    return bool(tvm.DataType(dtype).bits <= WIDEST_BITS)
