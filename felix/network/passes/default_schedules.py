"""TVM's default schedules of a GPU (dlight), for programs that have no threads."""

from __future__ import annotations

import dataclasses
import logging
from typing import Any

import tvm
from tvm import tirx
from tvm.s_tir import dlight

#: What TVM's rules raise on programs that they were not written for.
_RULE_ERRORS = (
    AssertionError,
    AttributeError,
    IndexError,
    KeyError,
    RuntimeError,
    TypeError,
    ValueError,
)

_log = logging.getLogger("felix.network")


def default_schedules() -> tvm.transform.Pass:
    """The pass that schedules the PrimFuncs of a module; the last rule takes every program."""
    gpu = dlight.gpu
    rules = (gpu.Matmul(), gpu.GEMV(), gpu.Reduction(), gpu.GeneralReduction())
    return dlight.ApplyDefaultSchedule(*map(_Careful, rules), gpu.Fallback())


@dataclasses.dataclass(frozen=True, slots=True)
class _Careful:
    """A rule that leaves programs to the others on which it fails."""

    rule: Any

    def apply(self, func: tirx.PrimFunc, target: tvm.target.Target, tunable: bool) -> Any:
        """The rule's schedules; None where it has none."""
        try:
            return self.rule.apply(func, target, tunable)
        except _RULE_ERRORS as error:
            _log.debug("%s fails: %s", type(self.rule).__name__, error)
            return None
