"""For all tests."""

from __future__ import annotations

import gc


def pytest_collection_finish() -> None:
    """Keep the garbage collector from looking through the imported libraries again and again."""
    gc.collect()
    gc.freeze()
