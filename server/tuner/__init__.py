"""The tuner process: claim a job, run it by the engine, report."""

from __future__ import annotations
