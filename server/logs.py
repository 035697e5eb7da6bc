"""Logging of the service's processes: text for people or one JSON object a line.

Every record of ours has an `action` from a small vocabulary. Fields that could hold a secret are
never logged.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import MutableMapping
from typing import Any

from felix import display

#: What a record has without us.
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class JsonFormatter(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        """The line of a record."""
        content = {
            "at": self.formatTime(record, "%Y-%m-%dT%H:%M:%S%z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        extra = {k: v for k, v in vars(record).items() if k not in _STANDARD}
        if record.exc_info:
            extra["traceback"] = self.formatException(record.exc_info)
        return json.dumps({**content, **extra}, default=str)


class TextFormatter(logging.Formatter):
    """One line for a person; a traceback follows on lines of its own."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        """The line, without characters that a terminal would act on."""
        return display.escaped(super().formatMessage(record))


class Log(logging.LoggerAdapter[logging.Logger]):
    """A module's log: fields of a record are arguments by name, `action` above all."""

    def process(
        self, msg: Any, kwargs: MutableMapping[str, Any]
    ) -> tuple[Any, MutableMapping[str, Any]]:
        """What `logging` takes for it."""
        return msg, {"exc_info": kwargs.pop("exc_info", None), "extra": kwargs}


def of(name: str) -> Log:
    """The log of this name, a module's."""
    return Log(logging.getLogger(name))


def configure(as_json: bool) -> None:
    """Send what our modules log to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    if as_json:
        handler.setFormatter(JsonFormatter())
    else:
        handler.setFormatter(TextFormatter("%(asctime)s %(levelname)s %(message)s", "%H:%M:%S"))
    for name in ("server", "felix"):
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.setLevel(logging.INFO)
        logger.propagate = False
