"""Formulas of tasks made ahead, in processes of their own, while the first rounds go on.

What they make goes to the cache of formulas (`felix.space.formula_cache`), which the run reads
when it opens a task's traces: nothing waits for them, and what they have not made by then the run
makes itself. On a CPU they would disturb timing, so they are for runs on GPUs.
"""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Sequence

from felix import errors
from felix.processes import child
from felix.space import legality
from felix.target import cpu
from felix.task import Task

#: Processes at most, and cores for each: builders have the others.
MAX_PROCESSES, CORES_EACH = 6, 2
_MODULE = "felix.space.ahead"
#: Builders and the run itself come first.
NICE = 5


def n_processes(tasks: Sequence[Task], n_cores: int | None = None) -> int:
    """How many processes are worth their start; 0 for one task, or on a CPU."""
    if len(tasks) < 2 or tasks[0].target.kind.name == "llvm":
        return 0
    cores = cpu.available_cores() if n_cores is None else n_cores
    return min(MAX_PROCESSES, cores // CORES_EACH - 1, len(tasks) // 2)


class Ahead:
    """Processes that make the formulas of tasks, in order; `close` ends them.

    Args:
        tasks: the first one first.
        count: how many processes; 0: none.
    """

    def __init__(self, tasks: Sequence[Task], count: int) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="felix-ahead-")
        self._processes: list[subprocess.Popen[bytes]] = []
        try:
            for number in range(count):
                self._processes.append(self._start(number, tasks[number::count]))
        except OSError:  # no process could be started: the run makes all formulas itself
            self.close()

    def _start(self, number: int, tasks: Sequence[Task]) -> subprocess.Popen[bytes]:
        path = pathlib.Path(self._folder.name, f"{number}.json")
        path.write_text(json.dumps([task.to_json() for task in tasks]))
        return child.start(_MODULE, str(path))

    def wait(self) -> None:
        """Until all formulas are made."""
        for process in self._processes:
            process.wait()

    def close(self) -> None:
        """End the processes; may be called twice."""
        for process in self._processes:
            child.end(process)
        self._folder.cleanup()


def main(path: pathlib.Path) -> None:
    """Make the formulas of the tasks in a file, the first one first: what a process does."""
    from felix.space import diversity
    from felix.space import sketch as sketching

    os.nice(NICE)
    parent = os.getppid()
    for text in json.loads(path.read_text()):
        try:
            sketches = sketching.trace_sketches(Task.from_json(text, trusted=True))
        except errors.FelixError:
            continue  # the run says why
        for sketch in diversity.searched(sketches):
            if os.getppid() != parent:  # it was killed
                return
            legality.make_formulas(sketch)


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
