"""A generated kernel program: what a template makes of decisions, and what is measured."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from typing import TYPE_CHECKING, TypeAlias

from felix import launch_plan

if TYPE_CHECKING:
    import tvm

#: What is measured of a candidate: a scheduled module, or what a template generated.
Program: TypeAlias = "tvm.IRModule | GeneratedProgram"


@dataclasses.dataclass(frozen=True, slots=True)
class GeneratedProgram:
    """CUDA source and the launches that run it.

    Attributes:
        source: CUDA C++ with `extern "C"` kernels, complete but for CUDA's own headers.
        arch: what NVRTC compiles it for, like "sm_90a" or "sm_80".
        plan: its launches on the task's parameters, in their order.
    """

    source: str
    arch: str
    plan: launch_plan.LaunchPlan

    @property
    def fingerprint(self) -> str:
        """Hash, the same for equal programs in every process."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()[:32]

    def to_json(self) -> str:
        """One line that `from_json` reads."""
        fields = {"source": self.source, "arch": self.arch, "plan": self.plan.to_json()}
        return json.dumps(fields)

    @classmethod
    def from_json(cls, text: str) -> GeneratedProgram:
        """The program that `to_json` wrote."""
        fields = json.loads(text)
        plan = launch_plan.LaunchPlan.from_json(fields["plan"])
        return cls(fields["source"], fields["arch"], plan)
