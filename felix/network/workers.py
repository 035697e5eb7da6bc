"""The processes that measure, started before there is anything to measure."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator

import tvm

from felix.measure import local, local_workers, work
from felix.task import Task
from felix.tuning.options import Pool, TuneOptions


@dataclasses.dataclass(frozen=True, slots=True)
class Starting:
    """Processes that start.

    Args:
        options: of the run that has them.
        processes: None: the options have a pool of their own.
    """

    options: TuneOptions
    processes: local_workers.LocalWorkers | None

    def await_quiet(self, full: tvm.target.Target) -> None:
        """Wait until what is timed on a target is not disturbed: on a CPU, until the processes
        have loaded TVM."""
        if self.processes is not None and full.kind.name == "llvm":
            self.processes.await_loaded()


@contextlib.contextmanager
def starting(options: TuneOptions) -> Iterator[Starting]:
    """Processes of this machine for a run in the block, which load TVM from now on.

    That takes as long as the import of a small network. They end with the run, or with the block
    if there was none. Options with a pool of their own stay as they are.
    """
    if options.pool is not None:
        yield Starting(options, None)
        return
    measuring = work.LocalOptions(devices=options.devices)
    waiting = [local_workers.LocalWorkers(measuring)]
    waiting[0].launch()

    def pool(task: Task) -> Pool:
        made = local.LocalPool(task, measuring, *waiting)
        waiting.clear()  # they are the pool's
        return made

    try:
        yield Starting(dataclasses.replace(options, pool=pool), waiting[0])
    finally:
        for each in waiting:
            each.close()
