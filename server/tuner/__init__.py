"""The tuner process: claim a job, run it by the engine, report.

In: a queued job.
Out: trials, artifacts.
From: `commands`.
"""

from __future__ import annotations
