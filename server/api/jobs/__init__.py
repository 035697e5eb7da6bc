"""Routes of jobs and of what belongs to one."""

from __future__ import annotations
