"""The bundle of a tuned task: its files and the script that runs it."""

from __future__ import annotations
