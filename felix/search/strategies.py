"""Names of the strategies of the search; loads nothing, for the command line.

`gradient` is the search (`felix.search.gradient`), `local` the same without descents.
"""

from __future__ import annotations

NAMES = ("gradient", "local")
#: What a session of another search says, made by the caller (`TuneOptions.make_search`).
CUSTOM = "custom"
#: The default on each kind of target, as measured (docs/design/search.md).
DEFAULTS = {"cuda": "gradient", "llvm": "gradient"}


def problem(name: str) -> str | None:
    """Why there is no search of that name, in a sentence; None if there is."""
    if name in NAMES:
        return None
    return f"there is no strategy {name!r}: use {' or '.join(NAMES)}"
