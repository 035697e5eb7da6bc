"""One place starts programs of ours, one function those of others."""

from __future__ import annotations

import pathlib
import re

import felix

ROOT = pathlib.Path(felix.__file__).parents[1]
STARTS = re.compile(
    r"subprocess\.(run|Popen|call|check_\w+)\(|os\.(fork|forkpty|exec\w+|posix_spawn\w*|system"
    r"|popen|spawn\w+)\(|(multiprocessing|ctx|context)\.(Process|Pool)\(|get_context\(|ProcessPoolExecutor\("
)
#: It runs without Felix, where an artifact was unpacked.
ALONE = {"server/tuner/artifact_run_script.py"}
PLACES = {
    "felix/processes/child.py": 3,  # its last is a pool of the standard library's
    "felix/processes/foreign.py": 1,
    "felix/processes/fork_loop.py": 2,
}


def test_children_start_in_one_room() -> None:
    found = {}
    for package in ("felix", "server", "costmodel"):
        for path in (ROOT / package).rglob("*.py"):
            count = len(STARTS.findall(path.read_text()))
            name = path.relative_to(ROOT).as_posix()
            if count and name not in ALONE:
                found[name] = count
    assert found == PLACES
