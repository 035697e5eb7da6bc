"""Commands that work on this machine: a module each, with `run(arguments) -> exit code`.

`serve`, `tuner` and `db` start the service or look after its database here (`service`).
"""

from __future__ import annotations
