"""Measuring: builders and runners in processes of their own, here and on other machines.

In: a candidate's program.
Out: a checked latency, or why not.
From: `tuning`, `cli`, `costmodel`, `server`.

`local.LocalPool` measures on this machine, `cluster.pool.ClusterPool` on those of a cluster,
`boards.pool.BoardPool` on boards.
"""

from __future__ import annotations
