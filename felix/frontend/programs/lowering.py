"""An imported model as a module whose programs are what is tuned.

Operators are lowered to TIR, reshapes become views, and groups of calls become one program each.
The signature of `main` stays what it is.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
from collections.abc import Callable
from typing import Any, TypeAlias

import tvm
import tvm_ffi
from tvm import relax, tirx

from felix import errors, names
from felix import target as targets
from felix.frontend import imported, numerics, torch_forms
from felix.frontend.programs import constants, groups, operators, outlining
from felix.frontend.programs.planning import planner
from felix.frontend.programs.planning.planner import GroupCosts
from felix.frontend.rewriting import bindings, operator_name, with_function
from felix.tir import grammar, rounding

_Make: TypeAlias = "Callable[[tvm.IRModule], tvm.IRModule]"


class Fusion(enum.StrEnum):
    """How groups are chosen."""

    #: By the fixed rules of `groups`.
    RULES = "rules"
    #: By their cost: `planning`.
    PLANNED = "planned"


def fusion_for(full: tvm.target.Target) -> Fusion:
    """How the groups of a whole network are chosen for a target if nothing else is asked for.

    On a GPU, where every program costs a launch, by their cost.
    """
    return Fusion.PLANNED if full.kind.name == "cuda" else Fusion.RULES


def by_rules(mod: tvm.IRModule) -> tvm.IRModule:
    """A module of lowered operators with its groups by the fixed rules."""
    return outlining.outline(mod, groups.plan(mod))


@dataclasses.dataclass(frozen=True, slots=True)
class Grouping:
    """How groups are chosen, and what is known of candidates.

    Attributes:
        costs: of planned groups; without them every candidate that is a task counts as one kernel.
        machine: whose costs count of planned groups; the target's if left out.
        rules: makes the groups that are not planned, each a function that is "Primitive".
    """

    fusion: Fusion = Fusion.RULES
    costs: GroupCosts | None = None
    machine: targets.Hardware | None = None
    rules: _Make = by_rules


def lowered(
    model: imported.ImportedModel,
    target: targets.TargetLike = "llvm",
    grouping: Grouping = Grouping(),
) -> tvm.IRModule:
    """The module whose `main` calls one PrimFunc for each group.

    It is built with TVM's pipeline "default_build": those of targets would group again.

    Args:
        grouping: how groups are chosen.

    Raises:
        WorkloadError: an operator has no program, its constants need too much memory, or a program
            sums 16-bit floats in 16 bits.
        TargetError: unknown target.
    """
    full = targets.parse(target)
    made = _passed(lambda mod: _fused(_grouped(mod, full, grouping), grouping), model.mod, full)
    for variable, function in made.functions_items():
        name = rounding.narrow_sum(function) if isinstance(function, tirx.PrimFunc) else None
        if name is not None:
            raise errors.WorkloadError(
                f"the model's program {names.quoted(variable.name_hint)} sums 16-bit floats in 16 "
                f"bits ({names.quoted(name)}), which loses small terms: compute it in float32 and "
                "report it"
            )
    return made


def _fused(grouped: tvm.IRModule, grouping: Grouping) -> tvm.IRModule:
    """Programs of groups, and the views that are left between planned ones."""
    if grouping.fusion is Fusion.RULES:
        return torch_forms.attach(grouped, relax.transform.FuseTIR()(grouped))
    made = torch_forms.attach(grouped, outlining.fused(grouped))
    passes = [relax.transform.RewriteDataflowReshape(), relax.transform.DeadCodeElimination()]
    return tvm.transform.Sequential(passes)(made)


def _grouped(mod: tvm.IRModule, full: tvm.target.Target, grouping: Grouping) -> tvm.IRModule:
    if grouping.fusion is Fusion.PLANNED:
        mod = operators.slice_splits(mod)
    mod = operators.expand_attention(mod)
    mod = relax.transform.DecomposeOpsForInference()(mod)
    mod = relax.transform.CanonicalizeBindings()(mod)
    mod = operators.fuse_transposes(mod)
    legal = torch_forms.legalizations(numerics.legalizations())
    mod = constants.folded(relax.transform.LegalizeOps(legal)(mod))
    mod = tvm.transform.Sequential(_passes(grouping.fusion))(mod)
    if grouping.fusion is Fusion.RULES:
        return grouping.rules(mod)
    machine = grouping.machine or targets.hardware(full)
    extended, chosen = planner.plan(mod, full, machine, grouping.costs)
    return relax.transform.DeadCodeElimination()(outlining.outline(extended, chosen))


def _passes(fusion: Fusion) -> list[Any]:
    """From operators to programs; planned groups may have views inside."""
    views = [relax.transform.RewriteDataflowReshape()] if fusion is Fusion.RULES else []
    return [
        relax.transform.FoldConstant(),
        *views,
        relax.transform.AnnotateTIROpPattern(),
        relax.transform.DeadCodeElimination(),
    ]


def _passed(make: _Make, mod: tvm.IRModule, full: tvm.target.Target) -> tvm.IRModule:
    try:
        with full, tvm.transform.PassContext(opt_level=3):
            return make(mod)
    except errors.WorkloadError:
        raise
    except (*grammar.TVM_ERRORS, AssertionError) as error:
        if imported.is_short(error):
            reason = f"computing its constants {imported.message()}"
        else:
            reason = _reason(mod, full)
        raise errors.WorkloadError(f"the model cannot be lowered: {reason}") from error


def _reason(mod: tvm.IRModule, full: tvm.target.Target) -> str:
    """Why a module cannot be lowered, and what to do."""
    operator = None
    passes = tvm.transform.PassContext(opt_level=3)
    with contextlib.suppress(*grammar.TVM_ERRORS), full, passes:
        operator = find(mod, lambda alone: _grouped(alone, full, Grouping()))
    if operator is None:
        return "TVM finds no programs for its operators and shapes"
    return (
        f"TVM finds no program for its operator {operator}; write the model with other operators "
        "or another element type there"
    )


# The operator for which TVM makes no program, for an error that names it.

#: Calls of programs and functions that are there already.
_NO_OPERATORS = frozenset({"", "call_tir", "call_dps_packed", "call_pure_packed"})


def find(mod: tvm.IRModule, lower: Callable[[tvm.IRModule], Any]) -> str | None:
    """The first operator of `main` that alone cannot be lowered, with its operands, in words.

    Args:
        mod: an imported module that cannot be lowered.
        lower: lowers a module, or raises an error of TVM.
    """
    seen = set()
    for binding in bindings(mod["main"]):
        call = binding.value
        if operator_name(call) in _NO_OPERATORS:
            continue
        alone = _alone(call)
        key = tvm_ffi.structural_hash(alone["main"])
        if key not in seen and not _is_lowered(alone, lower):
            return _in_words(call)
        seen.add(key)
    return None


def _alone(call: Any) -> tvm.IRModule:
    """A module that has one call of an operator and nothing else."""

    def result(builder: relax.BlockBuilder) -> Any:
        value = builder.emit(call)
        return relax.Tuple([value]) if _is_tensor(value) else value

    return with_function(tvm.IRModule(), relax.analysis.free_vars(call), result)


def _is_lowered(mod: tvm.IRModule, lower: Callable[[tvm.IRModule], Any]) -> bool:
    try:
        lower(mod)
    except (*grammar.TVM_ERRORS, AssertionError):
        return False
    return True


def _in_words(call: Any) -> str:
    specs = [imported.spec_of_type(each.ty, "") for each in call.args if _is_tensor(each)]
    operands = [f"{spec.dtype} {spec.shape or 'of no or open shape'}" for spec in specs]
    return f"{operator_name(call)!r} of {', '.join(operands) or 'no tensors'}"


def _is_tensor(value: Any) -> bool:
    return isinstance(value.ty, relax.TensorType)
