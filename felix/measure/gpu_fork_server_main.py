"""The fork server of what runs on GPUs: it loads neither TVM nor what reads programs.

The GPU's driver and NVRTC come up in the workers (`processes.fork_loop`).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

from felix.measure import worker_main
from felix.processes import fork_loop
from felix.runner.cuda import runner


def _work(pipes: Sequence[Connection], settings: dict[str, Any]) -> None:
    """Become a worker that runs programs on a GPU, and serve."""
    (conn,) = pipes
    worker_main.become(conn, settings)
    made = runner.Runner(settings["tasks"], quiet=lambda: worker_main.quiet(conn))
    worker_main.serve(conn, {"open": made.open, "prepare": made.prepare, "run": made.run})


if __name__ == "__main__":
    fork_loop.serve(sys.argv[1:], lambda: None, _work)
