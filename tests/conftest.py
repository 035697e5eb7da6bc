"""For all tests."""

from __future__ import annotations

import gc
import multiprocessing.util
import pathlib
import subprocess
from collections.abc import Generator

import pytest

from tests.support import share, warm

#: Tests that wait for processes rather than compute: first, so that others compute meanwhile, and
#: no worker is left with them at the end.
_WAITING = str(pathlib.Path(__file__).parent / "server" / "tuner")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Order the files, those that wait first; skip what needs a GPU; what is slow says why."""
    if unexplained := share.without_reason(items):
        raise pytest.UsageError(f"marked slow without a reason: {', '.join(unexplained)}")
    items.sort(key=lambda item: not str(item.path).startswith(_WAITING))
    if on_gpu := [item for item in items if item.get_closest_marker("gpu") is not None]:
        from tests.support import gpu

        for item in on_gpu if not gpu.IS_HERE else ():
            item.add_marker(pytest.mark.skip(reason="needs an NVIDIA GPU"))


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


def pytest_configure() -> None:
    """Programs of ours are forks of a process that has loaded the libraries."""
    subprocess.Popen = warm.Popen  # type: ignore[misc]
    multiprocessing.util.spawnv_passfds = warm.spawn  # type: ignore[assignment]


def pytest_unconfigure() -> None:
    """End that process."""
    warm.forks.close()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Programs of a test marked `fresh_processes` start anew."""
    warm.forks.are_used = item.get_closest_marker("fresh_processes") is None
    return (yield)
