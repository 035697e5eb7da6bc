"""How operators of an ONNX file are grouped: the same where it is read and where it is built."""

from __future__ import annotations

from felix import frontend
from felix import target as targets

#: Costs of groups on a GPU are this one's, whatever a tuner's turns out to be: the machine that
#: reads a file may know no more of it than "cuda".
_PLANNED_FOR = "h100"


def of(target: targets.TargetLike) -> frontend.Grouping:
    """How the operators of a job's network are grouped for a target."""
    fusion = frontend.fusion_for(targets.parse(target))
    return frontend.Grouping(fusion, machine=targets.hardware(_PLANNED_FOR))
