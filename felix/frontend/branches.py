"""Branches of an ONNX model: `If` by an input or a constant is imported, others are refused.

Importing makes one dataflow of all operators. What is computed for the condition of a branch, and
a branch inside of one, are lost on the way; nothing that reads what is lost may go on.
"""

from __future__ import annotations

from typing import Any

from tvm import relax

from felix import errors


def check(main: relax.Function, has_branches: bool) -> None:
    """Every value of an imported model is defined.

    Args:
        main: the imported function.
        has_branches: whether the model has the operator 'If'; shapes get lost without it, too.

    Raises:
        WorkloadError: importing lost a value.
    """
    if _is_defined(main.body, set(main.params)):
        return
    reason = (
        "its operator 'If' has a condition that the model computes, or another 'If' inside; "
        "export it without branches (with Where), or with conditions that are constants"
    )
    if not has_branches:
        reason = "it computes a shape from data; export it with shapes that are constants"
    raise errors.WorkloadError(f"the ONNX model cannot be imported: {reason}")


def _is_defined(expression: Any, known: set[Any]) -> bool:
    if isinstance(expression, relax.If):
        parts = (expression.cond, expression.true_branch, expression.false_branch)
        return all(_is_defined(part, set(known)) for part in parts)
    if not isinstance(expression, relax.SeqExpr):
        return known.issuperset(relax.analysis.free_vars(expression))
    for block in expression.blocks:
        for binding in block.bindings:
            if not _is_defined(binding.value, known):
                return False
            known.add(binding.var)
    return _is_defined(expression.body, known)
