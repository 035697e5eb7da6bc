"""The walks of the architecture page: read, watched while they are made, checked."""

from __future__ import annotations

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import tomllib
import types
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import felix

ROOT = pathlib.Path(felix.__file__).parents[1]
PAGE = ROOT / "docs/design/architecture.md"
FIRST_TITLE = "From `felix.tune` to a latency"
#: Files of a walk at most.
LIMITS = {FIRST_TITLE: 22, "From a request to an artifact": 22, "From a model to a callable": 25}


#: Where the lines of a walk are.
OURS = ("felix", "server", "costmodel")
#: What a line may say of its hop: it is called in another thread or process,
HANDED_ON = frozenset({"(thread)", "(process)"})
#: by way of an interface that the caller's layer has,
PROTOCOL = "(protocol)"
#: or by the line above as the first walk says.
FIRST = "(first walk)"


class Hop:
    """A line of a walk: what is called, by which line, and how."""

    def __init__(self, place: str, caller: Hop | None, mark: str) -> None:
        self.path, _, self.name = place.partition(":")
        self.place, self.caller, self.mark = place, caller, mark


def walk(title: str) -> list[Hop]:
    """The lines below a title, each indented below what calls it."""
    text = PAGE.read_text().split(f"**{title}**", 1)[1]
    block = re.split(r"```\n", text, maxsplit=2)[1]
    hops: list[Hop] = []
    stack: list[Hop] = []
    for line in block.splitlines():
        depth = (len(line) - len(line.lstrip())) // 2
        del stack[depth:]
        place, _, mark = line.strip().partition(" ")
        assert mark in {"", *HANDED_ON, PROTOCOL, FIRST}, line
        hops.append(Hop(place, stack[-1] if stack else None, mark))
        stack.append(hops[-1])
    return hops


def layers(package: str) -> dict[str, int]:
    """How low each room of a package is, by its import contract."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    (found,) = (
        each["layers"]
        for each in contracts["contracts"]
        if each["type"] == "layers" and each["containers"] == [package]
    )
    return {room.strip(): n for n, layer in enumerate(found) for room in layer.split("|")}


class Calls:
    """Which hops are called, and by what, while the block runs.

    A hop is called by the functions of its own file that are above it, and by those of the first
    other file of ours. What is above that file called a hop that is left out.
    """

    def __init__(self, hops: list[Hop]) -> None:
        self._places = {hop.place for hop in hops}
        self._names = {hop.name for hop in hops}
        #: (a hop, one of its callers; None: nothing of ours in this thread)
        self.edges: set[tuple[str, str | None]] = set()

    def __enter__(self) -> Calls:
        threading.setprofile(self._note)
        sys.setprofile(self._note)
        return self

    def __exit__(self, *exc_info: object) -> None:
        sys.setprofile(None)
        threading.setprofile(None)

    def _note(self, frame: types.FrameType, event: str, _: object) -> None:
        if event != "call" or frame.f_code.co_qualname not in self._names:
            return
        path = _path(frame)
        place = f"{path}:{frame.f_code.co_qualname}"
        if place not in self._places:
            return
        other, above = None, frame.f_back
        while above is not None:
            if (caller := _path(above)) is not None:
                if other is None and caller != path:
                    other = caller
                if caller != (other or path):
                    return
                name = above.f_code.co_qualname.split(".<locals>")[0]
                self.edges.add((place, f"{caller}:{name}"))
            above = above.f_back
        if other is None:
            self.edges.add((place, None))


def _path(frame: types.FrameType) -> str | None:
    """The file of a frame, if it is ours."""
    path = os.path.relpath(frame.f_code.co_filename, ROOT)
    return path if path.split(os.sep)[0] in OURS else None


def check(title: str, calls: Calls, hops: list[Hop]) -> None:
    """Each hop was called, by its caller unless it is handed on, and none calls a higher layer."""
    called = {place for place, _ in calls.edges}
    missing = [hop.place for hop in hops if hop.place not in called]
    assert not missing, f"not called: {missing}"
    for hop in hops:
        if hop.caller is None:
            continue
        if hop.mark == FIRST:
            first = {each.place for each in walk(FIRST_TITLE)}
            assert {hop.place, hop.caller.place} <= first, f"{hop.place} is not in the first walk"
        else:
            ways = {hop.caller.place, None} if hop.mark in HANDED_ON else {hop.caller.place}
            others = {caller for place, caller in calls.edges if place == hop.place}
            assert ways & others, f"{hop.caller.place} does not call {hop.place}, but {others}"
        is_downhill = _depth(hop) >= _depth(hop.caller)
        assert is_downhill or hop.mark == PROTOCOL, f"{hop.caller.place} calls up to {hop.place}"
    assert len({hop.path for hop in hops}) <= LIMITS[title]


def _depth(hop: Hop) -> tuple[bool, int]:
    """How low the room of a hop is; `server` is above `felix`."""
    package, room, *_ = pathlib.Path(hop.path).parts
    return package == "felix", layers(package)[room.removesuffix(".py")]


class Workers:
    """A fork server whose workers are threads of this process."""

    def __init__(self, serve: Callable[[Connection, dict[str, Any]], None]) -> None:
        self._serve = serve
        self.work_dir = pathlib.Path(tempfile.mkdtemp(prefix="felix-work-"))
        self._sleepers: dict[int, subprocess.Popen[bytes]] = {}

    @property
    def pid(self) -> int:
        """Of the process in which the workers are."""
        return os.getpid()

    def launch(self) -> None:
        """Nothing has to begin."""

    def await_ready(self) -> None:
        """Nothing has to be waited for."""

    def fork(self, settings: dict[str, Any], pipe: Connection) -> int:
        """A thread, and a process that stands for it."""
        mine = Connection(os.dup(pipe.fileno()))
        threading.Thread(target=self._serve, args=(mine, settings), daemon=True).start()
        sleeper = subprocess.Popen(["sleep", "600"], start_new_session=True)
        self._sleepers[sleeper.pid] = sleeper
        return sleeper.pid

    def wait(self, pid: int) -> int | None:
        """End what stands for a worker."""
        sleeper = self._sleepers.pop(pid)
        sleeper.kill()
        sleeper.wait()
        return None

    def close(self) -> None:
        """End what is left."""
        for pid in list(self._sleepers):
            self.wait(pid)
        shutil.rmtree(self.work_dir, ignore_errors=True)
