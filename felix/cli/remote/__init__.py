"""Commands that talk to a running service: a module each, with `run(arguments) -> exit code`.

They reach it by `felix.client`; `connection` has its address and key. `control` has five verbs.
"""

from __future__ import annotations
