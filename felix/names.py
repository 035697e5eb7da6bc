"""Names and texts from outside: what may be in them, how long they are, how they are quoted.

A name is one line of printable characters: no control characters, no marks that change the
direction of writing, no halves of surrogate pairs. One that somebody chose is refused if it is
none (`check`); one that is made from something else is made one (`derived`).
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator

from felix import errors

MAX_CHARACTERS = 200
#: What a message quotes of anything.
MAX_QUOTED = 60
#: Stands for a character that may not be in a name.
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
_ELLIPSIS = "\N{HORIZONTAL ELLIPSIS}"
#: Control characters that a text of several lines may have.
_LAYOUT = frozenset("\n\r\t")
#: Marks, embeddings, overrides and isolates of writing direction.
_DIRECTION = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*")


def problem(name: str) -> str | None:
    """Why a text is no name, in words that follow "it"; None if it is one."""
    if len(name) > MAX_CHARACTERS:
        return f"has {len(name)} characters; {MAX_CHARACTERS} are allowed"
    if not name.strip():
        return "is empty"
    return None if name.isprintable() else "has characters that cannot be printed"


def check(what: str, name: str) -> str:
    """The name, if it is one; `what` begins the message.

    Raises:
        WorkloadError: it is none.
    """
    reason = problem(name) if isinstance(name, str) else "must be text"
    if reason is not None:
        raise errors.WorkloadError(f"{what} {reason}: {quoted(name)}")
    return name


def derived(text: str, fallback: str = "unnamed") -> str:
    """A name made of a text: cut with an ellipsis, what cannot be printed replaced."""
    head = text[: MAX_CHARACTERS + 1]
    name = "".join(c if c.isprintable() else _REPLACEMENT for c in head)
    if len(name) > MAX_CHARACTERS:
        name = name[: MAX_CHARACTERS - 1] + _ELLIPSIS
    return name if name.strip() else fallback


def is_identifier(name: str) -> bool:
    """Whether generated code can carry a name as it is: letters, digits, `_` and `.`."""
    return len(name) <= MAX_CHARACTERS and _IDENTIFIER.fullmatch(name) is not None


def identifier(text: str, taken: set[str]) -> str:
    """An identifier that resembles a text and is not `taken`; it is added there."""
    stem = text if is_identifier(text) else re.sub(r"[^A-Za-z0-9_]+", "_", text[:MAX_QUOTED])
    if not is_identifier(stem):
        stem = f"v{stem}"
    name, number = stem, 1
    while name in taken:
        name, number = f"{stem[: MAX_CHARACTERS - 12]}_{number}", number + 1
    taken.add(name)
    return name


def text_problem(text: str) -> str | None:
    """Why a text of several lines cannot be kept and shown; None if it can."""
    return None if all(map(_is_text, text)) else "has control characters"


def _is_text(character: str) -> bool:
    if character in _LAYOUT:
        return True
    return unicodedata.category(character) not in ("Cc", "Cs") and character not in _DIRECTION


def strings(value: object) -> Iterator[str]:
    """All texts of a JSON value: keys of its objects, too."""
    stack = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, str):
            yield item
        elif isinstance(item, dict):
            stack.extend((*item.keys(), *item.values()))
        elif isinstance(item, list | tuple):
            stack.extend(item)


def quoted(value: object) -> str:
    """A value as messages show it: one short line, escaped."""
    text = ascii(value[: MAX_QUOTED + 1]) if isinstance(value, str) else ascii(value)
    is_cut = len(text) > MAX_QUOTED or (isinstance(value, str) and len(value) > MAX_QUOTED)
    return text[:MAX_QUOTED] + "..." if is_cut else text
