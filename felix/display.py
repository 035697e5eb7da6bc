"""Text of others, shown where it can do nothing to what stands around it.

A name may be in any script. In a terminal, a log or an option of a form, one that is written from
right to left would move the figures beside it, and control characters would do worse.
"""

from __future__ import annotations

import unicodedata

#: Begins and ends a part with a direction of its own (Unicode's FSI and PDI).
_ISOLATE, _END = "\u2068", "\u2069"
_RIGHT_TO_LEFT = frozenset({"R", "AL", "AN"})


def isolated(text: str) -> str:
    """The text with a direction of its own, if it has right-to-left characters."""
    if any(unicodedata.bidirectional(character) in _RIGHT_TO_LEFT for character in text):
        return f"{_ISOLATE}{text}{_END}"
    return text


def escaped(text: str) -> str:
    """One line in which what cannot be printed is an escape: `\\n`, `\\x1b`, `\\u202e`."""
    return "".join(
        character if character.isprintable() else ascii(character)[1:-1] for character in text
    )


def printable(text: str) -> str:
    """A name in a line of a terminal or log: escaped and isolated."""
    return isolated(escaped(text))
