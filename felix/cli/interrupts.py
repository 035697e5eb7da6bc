"""What SIGINT and SIGTERM do to a command: it ends, and reports and writes what it has."""

from __future__ import annotations

import signal
from typing import Any, NoReturn, Self

#: Exit code of an interrupted command.
EXIT_CODE = 130


class Interrupts:
    """In a block signals raise KeyboardInterrupt, as Ctrl-C does, and are noted, so that a run
    ends even if that is caught on its way, in a callback of a library for instance."""

    def __init__(self, *numbers: signal.Signals) -> None:
        self._numbers, self._noted = numbers, False
        self._before: dict[signal.Signals, Any] = {}

    def noted(self) -> bool:
        """Whether a signal came."""
        return self._noted

    def __enter__(self) -> Self:
        for number in self._numbers:
            self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *exc_info: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, *_: Any) -> NoReturn:
        self._noted = True
        raise KeyboardInterrupt
