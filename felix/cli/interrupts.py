"""What SIGINT and SIGTERM do to a command: it ends, and reports and writes what it has."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from typing import Any, NoReturn, Self

#: Exit code of an interrupted command.
EXIT_CODE = 130


@contextlib.contextmanager
def termination_as_interrupt() -> Iterator[None]:
    """SIGTERM raises KeyboardInterrupt in the block, as Ctrl-C does."""

    def interrupt(*_: Any) -> NoReturn:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class Interrupts:
    """Notes SIGINT and SIGTERM in a block, so that a run ends even if the KeyboardInterrupt is
    caught on its way, in a callback of a library for instance."""

    def __init__(self) -> None:
        self._noted = False
        self._before: dict[signal.Signals, Any] = {}

    def noted(self) -> bool:
        """Whether a signal came."""
        return self._noted

    def __enter__(self) -> Self:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *exc_info: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, *_: Any) -> NoReturn:
        self._noted = True
        raise KeyboardInterrupt
