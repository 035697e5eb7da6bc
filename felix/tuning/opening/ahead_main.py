"""A process of `ahead`: makes the formulas of the tasks in a file, and ends."""

from __future__ import annotations

import json
import os
import pathlib
import sys

from felix import errors
from felix.sketch import diversity, legality
from felix.sketch import sketch as sketching
from felix.task import Task

#: Builders and the run itself come first.
NICE = 5


def main(path: pathlib.Path) -> None:
    """Make the formulas of the tasks, the first one first."""
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
