"""The fork server of engines: it has their libraries loaded (`processes.fork_loop`).

Loading TVM and torch takes seconds; an engine that is a fork of this process has them at once, so
one that was killed is soon replaced. This process runs nothing for clients and holds no secret:
its environment has none, and it never sees a database. An engine is confined (`rights`) before it
does anything.

    python -m server.tuner.process.fork_server_main FD FOLDER MODULE:FACTORY LOG_JSON

An engine has the pipe to its tuner and, if it measures on a cluster, a second one to the link.
"""

from __future__ import annotations

import functools
import importlib
import pathlib
import signal
import sys
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

from felix.processes import confine, fork_loop, policy
from server import logs
from server.tuner.process import engine_main, rights


def _load() -> None:
    _make_engine()
    rights.prepare()
    confine.warn_of_missing()
    for number in (signal.SIGINT, signal.SIGTERM):  # a terminal's are the tuner's to handle
        signal.signal(number, _ignore)


@functools.cache
def _make_engine() -> Any:
    module, _, name = sys.argv[3].partition(":")
    return getattr(importlib.import_module(module), name)


def _work(pipes: Sequence[Connection], settings: dict[str, Any]) -> None:
    """Become an engine, which starts as `settings` (`rights.Start`) say, and serve."""
    if settings["is_confined"]:
        folder = pathlib.Path(settings["folder"])
        confine.confine(rights.engine(folder), [each.fileno() for each in pipes])
    pipe, *cluster = pipes
    run_workers = policy.ConfineGpu(settings["run_workers"])
    engine_main.serve(pipe, functools.partial(_make_engine(), run_workers, *cluster))


def _ignore(*_: object) -> None:
    """Unlike SIG_IGN, this is not inherited by what an engine starts."""


if __name__ == "__main__":
    logs.configure(sys.argv[4] == "1")
    fork_loop.serve(sys.argv[1:], _load, _work)
