"""What TVM compiles of a program for a CPU: exp written out, divisions guarded, bindings moved."""

from __future__ import annotations

import tvm

from felix.measure.cpu import bindings, division, exponential


def prepared(mod: tvm.IRModule) -> tvm.IRModule:
    """The module as TVM compiles it; bindings come last, for the others make some."""
    return bindings.at_roots(division.guarded(exponential.written_out(mod)))


#: `prepared` as a pass of TVM.
PREPARED = tvm.transform.module_pass(
    lambda mod, _: prepared(mod), opt_level=0, name="felix.PreparedForCPU"
)
