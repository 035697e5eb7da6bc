"""A program for a GPU as one file: its launch plan as a line of JSON, then its cubin."""

from __future__ import annotations

import pathlib

from felix.launch_plan import LaunchPlan


def write(path: str, plan: LaunchPlan, cubin: bytes) -> None:
    """Plan and cubin in one file, which `read` reads."""
    pathlib.Path(path).write_bytes(plan.to_json().encode() + b"\n" + cubin)


def read(path: str) -> tuple[LaunchPlan, bytes]:
    """Plan and cubin of a file that `write` made."""
    head, _, cubin = pathlib.Path(path).read_bytes().partition(b"\n")
    return LaunchPlan.from_json(head.decode()), cubin
