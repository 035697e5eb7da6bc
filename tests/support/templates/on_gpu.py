"""Templates on a GPU: random legal decisions, measured and compared with the reference."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
import tvm

from felix import errors
from felix.measure.pool import local
from felix.task import Task
from felix.templates.generated import GeneratedProgram
from felix.templates.template import Template

#: Marks of tests that need a GPU.
MARKS = [
    pytest.mark.gpu,
    pytest.mark.skipif(not tvm.runtime.device("cuda", 0).exist, reason="needs an NVIDIA GPU"),
]
#: A kernel that hangs costs its candidate so much and no more.
OPTIONS = local.LocalOptions(builders=4, run_timeout_s=5.0, build_timeout_s=30.0)
#: Random decisions of each template.
COUNT = 8


def check(task: Task, templates: Sequence[Template]) -> None:
    """Fail with the messages of what does not compute the task."""
    programs = [program for made in templates for program in random_programs(made)]
    with local.LocalPool(task, OPTIONS) as pool:
        results = pool.measure(programs)
    messages = [result.message for result in results if not (result.ok and result.checked)]
    assert not messages, messages


def random_programs(made: Template) -> list[GeneratedProgram]:
    """Programs of random decisions that the template takes; the same every time."""
    rng = random.Random(0)
    programs: list[GeneratedProgram] = []
    while len(programs) < COUNT:
        try:
            programs.append(made.generate({p.name: rng.choice(p.domain) for p in made.parameters}))
        except errors.DecisionError:
            continue
    return programs
