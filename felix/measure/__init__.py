"""Build, check and time candidate schedules in processes of their own.

In: a candidate's program.
Out: a checked latency, or why not.
From: `tuning`, `network`, `costmodel`.

`protocol` says what a measurement is, `local.LocalPool` measures on this machine,
`cluster.pool.ClusterPool` on those of a cluster, `boards.pool.BoardPool` on boards,
`testing.FunctionMeasurer` answers from a function.
"""

from __future__ import annotations

from felix.runner import protocol

Measurement = protocol.Measurement
Measurer = protocol.Measurer
ErrorClass = protocol.ErrorClass

__all__ = ["ErrorClass", "Measurement", "Measurer"]
