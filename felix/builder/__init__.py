"""Building: from a candidate's program to a file that another process runs.

In: a candidate's program.
Out: a library or cubins with launches, or why not.
From: `measure`, `network`, `artifact`, `server`.
"""

from __future__ import annotations
