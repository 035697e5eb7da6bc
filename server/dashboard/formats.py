"""Numbers in words for people, code with colours. Unknown values are a dash.

Templates have these functions as filters.
"""

from __future__ import annotations

import datetime
import json
from typing import Any

import markupsafe
import pygments
from pygments import formatters, lexers

NONE = "–"

_SI = ("", "k", "M", "G", "T", "P")


def latency(value_us: float | None) -> str:
    """A latency with a unit that suits it."""
    if value_us is None:
        return NONE
    for limit, scale, unit in ((1.0, 1e-3, "ns"), (1e3, 1.0, "µs"), (1e6, 1e3, "ms")):
        if value_us < 0.9995 * limit:  # what rounds to 1000 takes the next unit
            return f"{_three(value_us / scale)} {unit}"
    return f"{_three(value_us / 1e6)} s"


def duration(value_s: float | None) -> str:
    """A duration: `0.4 s`, `12 s`, `3 min 20 s`, `2 h 5 min`."""
    if value_s is None:
        return NONE
    if value_s < 10:
        return f"{value_s:.1f} s"
    whole = round(value_s)
    for size, large, small, divisor in ((86400, "d", "h", 3600), (3600, "h", "min", 60)):
        if whole >= size:
            rest = whole % size // divisor
            return f"{whole // size} {large}" + (f" {rest} {small}" if rest else "")
    if whole >= 60:
        return f"{whole // 60} min" + (f" {whole % 60} s" if whole % 60 else "")
    return f"{whole} s"


def ratio(value: float | None) -> str:
    """A speed-up: `3.25×`, `217×`."""
    return NONE if value is None else f"{_three(value)}×"


def number(value: float | None) -> str:
    """A number of about three digits."""
    return NONE if value is None else _three(value)


def count(value: int | None) -> str:
    """A whole number, in groups of three digits."""
    return NONE if value is None else f"{value:,}".replace(",", "\u202f")


def flops(value: float | None) -> str:
    """Float operations: `268 MFLOP`."""
    return NONE if value is None else f"{_si(value, 1000.0)}FLOP"


def size(value_bytes: float | None) -> str:
    """Bytes: `1.4 MB`."""
    return NONE if value_bytes is None else f"{_si(value_bytes, 1000.0)}B"


def memory(value_bytes: float | None) -> str:
    """The size of a memory, in powers of two: `48 KiB`."""
    if value_bytes is None:
        return NONE
    text = _si(value_bytes, 1024.0)
    number, _, prefix = text.partition(" ")
    number = number.removesuffix(".00").removesuffix(".0")
    return f"{number} {prefix.upper() + 'i' if prefix else ''}B"


def percent(share: float | None) -> str:
    """A share of one: `42 %`."""
    if share is None:
        return NONE
    return f"{100 * share:.0f} %" if share == 0 or share >= 0.095 else f"{100 * share:.1f} %"


def ago(then: datetime.datetime | None) -> str:
    """How long ago something was."""
    if then is None:
        return NONE
    seconds = (datetime.datetime.now(datetime.UTC) - then).total_seconds()
    if seconds < 5:
        return "now"
    for length, name in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= length:
            return f"{int(seconds // length)} {name} ago"
    return f"{int(seconds)} s ago"


def moment(then: datetime.datetime | None) -> str:
    """A time, to the second."""
    return NONE if then is None else then.strftime("%Y-%m-%d %H:%M:%S UTC")


def label(name: str) -> str:
    """The name of a figure without unit and count: `n_trials` is trials, `extract_s` extract."""
    for ending in ("_us", "_s", "_bytes"):
        name = name.removesuffix(ending)
    return name.removeprefix("n_").replace("_", " ")


def compact(value: Any) -> str:
    """A value of JSON as text."""
    if isinstance(value, str):
        return value
    if isinstance(value, float):
        return f"{value:.4g}"
    return json.dumps(value, ensure_ascii=False, separators=(", ", ": "))


def _three(value: float) -> str:
    if abs(value) >= 100:
        return f"{value:,.0f}".replace(",", "\u202f")
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def _si(value: float, base: float) -> str:
    power = 0
    while abs(value) >= base and power < len(_SI) - 1:
        value, power = value / base, power + 1
    text = f"{value:.0f}" if power == 0 else _three(value)
    return f"{text} {_SI[power]}"


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
