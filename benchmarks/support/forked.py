"""Work on one item after the other in forked processes, which may crash or hang."""

from __future__ import annotations

import dataclasses
import multiprocessing
import os
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import connection
from typing import Any, Generic, TypeVar

Item = TypeVar("Item")

_forks = multiprocessing.get_context("fork")


@dataclasses.dataclass(frozen=True, slots=True)
class Ended:
    """An item has no result: the process crashed, or was ended."""

    why: str


@dataclasses.dataclass(slots=True)
class _Process(Generic[Item]):
    """A process, the items that it has not answered yet, and when it began the first of them."""

    process: Any
    answers: connection.Connection
    left: list[Item]
    begun_s: float


def results(
    work: Callable[[Item], Any], items: Sequence[Item], processes: int, limit_s: float
) -> Iterator[tuple[Item, Any]]:
    """Items with what `work` returns of each, as they come.

    A process that native code ends, or that takes longer than `limit_s` for an item, is replaced.

    Args:
        work: is called in a forked process; what it returns is pickled.
        items: of the work.
        processes: how many at a time.
        limit_s: seconds for an item.
    """
    shares = [list(items[number::processes]) for number in range(processes)]
    running = [_start(work, share) for share in shares if share]
    try:
        while running:
            connection.wait([each.answers for each in running], timeout=limit_s / 10)
            now = []
            for each in running:
                yield from _received(each, limit_s)
                if not each.answers.closed:
                    now.append(each)
                elif each.left:
                    now.append(_start(work, each.left))
            running = now
    finally:
        for each in running:
            _end(each)


def _received(each: _Process[Item], limit_s: float) -> Iterator[tuple[Item, Any]]:
    """The results that are there; a process that does no more is ended."""
    try:
        while each.left and each.answers.poll():
            result = each.answers.recv()
            each.begun_s = time.monotonic()
            yield each.left.pop(0), result
    except EOFError:
        _end(each)
        yield each.left.pop(0), Ended("native code ended the process")
        return
    if not each.left:
        _end(each)
    elif time.monotonic() - each.begun_s > limit_s:
        _end(each)
        yield each.left.pop(0), Ended(f"no end in {limit_s:.0f} s")


def _start(work: Callable[[Item], Any], items: list[Item]) -> _Process[Item]:
    ours, theirs = _forks.Pipe(duplex=False)
    process = _forks.Process(target=_work, args=(work, items, theirs))
    process.start()
    theirs.close()
    return _Process(process, ours, items, time.monotonic())


def _work(work: Callable[[Item], Any], items: Sequence[Item], pipe: Any) -> None:
    with open(os.devnull, "w") as nowhere:  # where native code writes
        os.dup2(nowhere.fileno(), 2)
    warnings.simplefilter("ignore")
    for item in items:
        pipe.send(work(item))


def _end(each: _Process[Any]) -> None:
    each.process.kill()
    each.process.join()
    each.answers.close()
