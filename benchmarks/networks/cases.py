"""Cases of a benchmark of networks, each in a process of its own."""

from __future__ import annotations

import json
import multiprocessing
import pathlib
import sys
import tempfile
from collections.abc import Callable, Iterable
from typing import Any

from benchmarks.networks.results import label
from benchmarks.support import common

#: Runs a case and writes what it gave to a file.
Run = Callable[[dict[str, Any], str], None]


def run_all(
    benchmark: str,
    cases: Iterable[dict[str, Any]],
    run: Run,
    runs: list[dict[str, Any]],
    out: pathlib.Path,
) -> list[str]:
    """Run cases and add what they gave to `runs`; `out` is rewritten after each.

    Returns:
        The labels of those that failed.
    """
    failed = []
    for case in cases:
        print(f"{common.now()} {label(case)} ...", flush=True)
        result = _in_a_process(run, case)
        if result is None:
            failed.append(label(case))
            continue
        runs.append(result)
        common.write(out, common.header(benchmark) | {"device": result["device"], "runs": runs})
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return failed


def _in_a_process(run: Run, case: dict[str, Any]) -> dict[str, Any] | None:
    """The results of a case; None if it failed."""
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder) / "run.json"
        process = multiprocessing.get_context("spawn").Process(target=run, args=(case, str(out)))
        process.start()
        process.join()
        return json.loads(out.read_text()) if process.exitcode == 0 else None
