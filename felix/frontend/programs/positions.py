"""Places of the largest and smallest elements that are always places.

TVM's argmax begins with the place -1 and the smallest finite number, and keeps both where nothing
is larger: in rows of minus infinity, which masks make. PyTorch gives the first place of such a
row. In a row of that number and minus infinity, which has no larger element, PyTorch's is the
number's, and this one the first.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax

from felix.frontend.rewriting import Rewriter, operator_name

_OPERATORS = frozenset({"argmax", "argmin"})


def from_zero(mod: tvm.IRModule) -> tvm.IRModule:
    """The module with places that are at least 0."""
    return Rewriter(mod).run(_rule)


def _rule(rewriter: Rewriter, value: Any) -> Any:
    if operator_name(value) not in _OPERATORS:
        return None
    places = rewriter.emit(value)
    return relax.op.maximum(places, relax.const(0, str(places.ty.dtype)))
