"""The design space of a task: sketches with their variables, coordinates, samples and formulas.

In: a task.
Out: sketches: variables, samples, formulas, schedules.
From: `tuning`, `search`, `database`, `costmodel`.
"""

from __future__ import annotations
