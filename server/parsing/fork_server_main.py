"""The fork server of a `parser.Parser`: imports the engine and forks children (`fork_loop`)."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any

from felix.processes import fork_loop


def _load() -> None:
    from felix import without_torch  # noqa: F401  (before TVM)
    from server.parsing import child  # noqa: F401


def _work(pipes: Sequence[Connection], settings: Mapping[str, Any]) -> None:
    from server.parsing import child

    (connection,) = pipes
    child.become(settings)
    child.serve(connection)


if __name__ == "__main__":
    fork_loop.serve(sys.argv[1:], _load, _work)
