"""TIR programs: read, proved to stay in their buffers, costed, rehearsed, written as numpy.

In: a program from outside.
Out: a program proved to stay in its buffers, its design spaces.
From: `task`, `templates`, `frontend`, `space`.
"""

from __future__ import annotations
