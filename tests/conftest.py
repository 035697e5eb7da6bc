"""For all tests."""

from __future__ import annotations

import gc
import pathlib

import pytest

#: Tests that wait for processes rather than compute: first, so that others compute meanwhile, and
#: no worker is left with them at the end.
_WAITING = pathlib.Path(__file__).parent / "server" / "tuner"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Order the files: those that wait come first."""
    items.sort(key=lambda item: not item.path.is_relative_to(_WAITING))


def pytest_collection_finish() -> None:
    """Keep the garbage collector from looking through the imported libraries again and again."""
    gc.collect()
    gc.freeze()
