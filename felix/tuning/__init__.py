"""Tuning runs; start reading with `felix.tuning.tune`, then `felix.tuning.loop`, the loop.

In: tasks, a budget.
Out: results, a session.
From: users, `network`, `cli`, `server`.

A run (`run`) has tasks (`task_run`), each with its search (`options`), one cost model
(`online_model`), and candidates that are being measured (`pending`);
it stores itself (`checkpoint`) in a session (`felix.database`), shares the machine with timing
(`pacing`), measures the best again (`remeasure`) and ends with results (`results`).
"""

from __future__ import annotations
