"""Schedules proposed, measured and added to a data set."""

from __future__ import annotations
