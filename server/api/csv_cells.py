"""Cells of CSV files that spreadsheets do not take for formulas."""

from __future__ import annotations

#: A cell that begins like this is a formula to a spreadsheet.
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")


def safe(value: object) -> object:
    """A value for a cell: what would be a formula is a text that begins with `'`."""
    if isinstance(value, str) and value.lstrip(" ").startswith(_FORMULA):
        return f"'{value}"
    return value
