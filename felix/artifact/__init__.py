"""The bundle of a tuned task: its files and the script that runs it.

In: a result.
Out: a folder that runs without Felix.
From: `tuning`, `server`.
"""

from __future__ import annotations
