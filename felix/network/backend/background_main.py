"""The process that tunes in the background: `python -m MODULE FOLDER PARENT`.

It works off what one process has queued, and ends with that process, whose number is PARENT.
"""

from __future__ import annotations

import os
import signal
import sys

from felix.database import store
from felix.network import outcomes
from felix.network.backend import queued
from felix.processes import child, syscalls

#: Everything else that wants a core goes first.
_NICENESS = 19


def main(folder: str, parent: int) -> None:
    """Tune the tasks of the request; the answer is a summary as JSON."""
    syscalls.prctl(syscalls.PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it has ended already
        return
    os.nice(_NICENESS)
    question = child.Question(folder)
    asked = question.request
    known = store.Store(asked["known_results"])
    request = outcomes.Request(seconds=asked["seconds"])
    summary = queued.work_off(known, request, frozenset(asked["keys"]))
    question.answer(queued.to_json(summary))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
