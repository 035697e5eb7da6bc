"""Child processes: a server that forks them, and the confinement they work under.

In: a module or function of ours, rights.
Out: a confined child that answers.
From: `measure`, `space`, `costmodel`, `server`.

Nothing here knows what the children do.
"""

from __future__ import annotations
