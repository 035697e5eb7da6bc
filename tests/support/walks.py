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
#: Files of a walk at most.
LIMITS = {
    "From `felix.tune` to a latency": 22,
    "From a request to an artifact": 22,
    "From a model to a callable": 25,
}


class Hop:
    """A line of a walk: what is called, and by which line."""

    def __init__(self, place: str, caller: Hop | None, is_handed_on: bool) -> None:
        self.path, _, self.name = place.partition(":")
        self.place, self.caller, self.is_handed_on = place, caller, is_handed_on


def walk(title: str) -> list[Hop]:
    """The lines below a title, each indented below what calls it."""
    text = PAGE.read_text().split(f"**{title}**", 1)[1]
    block = re.split(r"```\n", text, maxsplit=2)[1]
    hops: list[Hop] = []
    stack: list[Hop] = []
    for line in block.splitlines():
        depth = (len(line) - len(line.lstrip())) // 2
        del stack[depth:]
        words = line.split()
        hops.append(Hop(words[0], stack[-1] if stack else None, len(words) > 1))
        stack.append(hops[-1])
    return hops


def layers() -> dict[str, int]:
    """How low each room of `felix/` is."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    (found,) = (
        each["layers"]
        for each in contracts["contracts"]
        if each["type"] == "layers" and each["containers"] == ["felix"]
    )
    return {room.strip(): n for n, layer in enumerate(found) for room in layer.split("|")}


class Calls:
    """Which hops are called, and by which hops above them, while the block runs."""

    def __init__(self, hops: list[Hop]) -> None:
        self._places = {hop.place for hop in hops}
        self._names = {hop.name for hop in hops}
        #: (a hop, one that was above it when it was called, or None)
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
        place = self._place(frame)
        if place is None:
            return
        self.edges.add((place, None))
        above = frame.f_back
        while above is not None:
            if (caller := self._place(above)) is not None:
                self.edges.add((place, caller))
            above = above.f_back

    def _place(self, frame: types.FrameType) -> str | None:
        code = frame.f_code
        if code.co_qualname not in self._names:
            return None
        place = f"{os.path.relpath(code.co_filename, ROOT)}:{code.co_qualname}"
        return place if place in self._places else None


def check(title: str, calls: Calls, hops: list[Hop]) -> None:
    """Each hop was called, by its caller unless it is handed on, and none calls a higher layer."""
    missing = [hop.place for hop in hops if (hop.place, None) not in calls.edges]
    assert not missing, f"not called: {missing}"
    for hop in hops:
        if hop.caller is None:
            continue
        if not hop.is_handed_on:
            assert (hop.place, hop.caller.place) in calls.edges, (
                f"{hop.caller.place} does not call {hop.place}"
            )
        assert _depth(hop) >= _depth(hop.caller), f"{hop.caller.place} calls up to {hop.place}"
    assert len({hop.path for hop in hops}) <= LIMITS[title]


def _depth(hop: Hop) -> int:
    """How low the room of a hop is; `server` is above `felix`."""
    package, room, *_ = pathlib.Path(hop.path).parts
    return layers()[room.removesuffix(".py")] if package == "felix" else -1


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
