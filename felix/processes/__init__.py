"""Child processes: a server that forks them, and the confinement they work under.

Nothing here knows what the children do.
"""

from __future__ import annotations
