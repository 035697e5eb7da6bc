"""Clients' programs, read in limited child processes.

In: a client's file.
Out: tasks, from a limited child.
From: `submission`, `api`, `dashboard`, `tuner`.
"""

from __future__ import annotations
