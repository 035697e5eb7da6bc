"""For all tests."""

from __future__ import annotations

import gc
import pathlib
from collections.abc import Generator

import pytest

from tests.support import share

#: Tests that wait for processes rather than compute: first, so that others compute meanwhile, and
#: no worker is left with them at the end.
_WAITING = str(pathlib.Path(__file__).parent / "server" / "tuner")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Order the files, those that wait first; a test marked slow says why."""
    if unexplained := share.without_reason(items):
        raise pytest.UsageError(f"marked slow without a reason: {', '.join(unexplained)}")
    items.sort(key=lambda item: not str(item.path).startswith(_WAITING))


#: New objects after which Python looks for garbage; its own 700 cost several per cent of all time.
_COLLECT_AFTER = 10_000


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep the garbage collector from looking through the imported libraries again and again."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()
        gc.set_threshold(_COLLECT_AFTER)
