"""Templates on a GPU: random legal decisions, measured and compared with the reference."""

from __future__ import annotations

import random
from collections.abc import Sequence

from felix.measure import local
from felix.task import Task
from felix.templates.generated import GeneratedProgram
from felix.templates.template import Template
from tests.support.cuda import on_gpu
from tests.support.templates import kernels

#: A kernel that hangs costs its candidate so much and no more.
OPTIONS = local.LocalOptions(builders=4, run_timeout_s=5.0, build_timeout_s=30.0)
#: Random decisions of each template.
COUNT = 8


def check(task: Task, templates: Sequence[Template]) -> None:
    """Fail with the messages of what does not compute the task."""
    programs = [program for made in templates for program in random_programs(made)]
    on_gpu.measured(task, programs, OPTIONS)


def random_programs(made: Template) -> list[GeneratedProgram]:
    """Programs of random decisions that the template takes; the same every time."""
    rng = random.Random(0)
    return [made.generate(kernels.legal(made, rng)) for _ in range(COUNT)]
