"""What was measured, on disk: the records of runs, their sessions, results that are known by now.

In: trials, a run's state, results of tasks.
Out: those of an earlier run, of the same or of similar tasks.
From: `tuning`, `network`, `cli`, `server`.
"""

from __future__ import annotations
