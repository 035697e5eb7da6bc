"""Schedules proposed, measured and added to a data set.

In: workloads.
Out: measured schedules on disk.
From: `cli`.

`proposals` chooses what to measure, `descent` is the search among its sources, `collector`
measures and writes.
"""

from __future__ import annotations
