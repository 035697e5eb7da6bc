"""Schedules and generated code with colours, as HTML that needs no inline styles.

Pygments marks the tokens with classes; `code.css` has a light and a dark palette for them. Long
texts stay plain, because marking them takes seconds.
"""

from __future__ import annotations

import markupsafe
import pygments
from pygments import formatters, lexers

#: Characters up to which tokens are marked.
MAX_MARKED = 150_000


def marked(text: str, language: str) -> markupsafe.Markup:
    """HTML of a program: `python`, `llvm`, `cuda`, `gas` (assembly), `ptx` or `json`."""
    if len(text) > MAX_MARKED:
        return markupsafe.escape(text)
    lexer = lexers.get_lexer_by_name(language, stripnl=False)
    return markupsafe.Markup(
        pygments.highlight(text, lexer, formatters.HtmlFormatter(nowrap=True))
    )


def language_of(source: str, target: str) -> str:
    """Which language generated code is in."""
    return "cuda" if "__global__" in source or target.startswith("cuda") else "llvm"
