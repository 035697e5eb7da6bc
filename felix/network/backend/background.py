"""Graphs that are built, and tasks that are tuned, while no call of a graph runs.

A thread builds graphs on copies of the inputs of a call. Unknown tasks are tuned by a process of
its own, which stands still while a call runs and goes on `IDLE_S` after the last one; it ends with
this process. Then the graphs are built again: the next calls run what was found.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import pathlib
import subprocess
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import torch
from torch._dynamo import convert_frame

from felix import errors
from felix.database import store
from felix.network import executable
from felix.network.backend import background_main, settings
from felix.processes import child, process_tree
from felix.runner.cuda import driver

#: So long after a call the cores and the GPU count as idle.
IDLE_S = 0.1
#: How often the thread looks whether they are.
_POLL_S = 0.02
_RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED

#: Builds a graph; returns the keys of its tasks of which nothing is known.
Build: TypeAlias = Callable[[], Sequence[str]]


class Background:
    """What one process does between calls; its thread lives as long as there is something to do.

    Attributes:
        status: what it does now or why it ended, for people.
    """

    def __init__(self) -> None:
        self.status = ""
        self._lock = threading.Lock()
        self._waiting: list[tuple[Build, settings.Settings]] = []
        self._thread: threading.Thread | None = None
        self._tuner: _Tuner | None = None
        self._n_calls = 0
        self._last_s = time.monotonic()
        self._event: Any = None
        self._is_closed = False
        atexit.register(self._await_end)

    @property
    def is_active(self) -> bool:
        """Whether calls have to be told (`call`)."""
        return self._thread is not None

    def add(self, build: Build, chosen: settings.Settings) -> None:
        """Build a graph soon, have its unknown tasks tuned, and build it again."""
        with self._lock:
            self._waiting.append((build, chosen))
            if self._thread is None and not self._is_closed:
                self.status = "graphs wait to be built"
                self._thread = threading.Thread(target=self._work, name="felix", daemon=True)
                self._thread.start()

    @contextlib.contextmanager
    def call(self) -> Iterator[None]:
        """A call of a graph, during which nothing is tuned."""
        with self._lock:
            self._n_calls += 1
            if self._tuner is not None:
                self._tuner.pause()
        try:
            yield
        finally:
            event = _recorded()
            with self._lock:
                self._n_calls -= 1
                self._last_s, self._event = time.monotonic(), event

    def close(self) -> None:
        """Begin nothing more, and end what tunes."""
        with self._lock:
            self._is_closed = True
            if self._tuner is not None:
                self._tuner.end()

    def _await_end(self) -> None:
        """At the end of the process: a thread in C++ would be cut off where it is."""
        self.close()
        if (thread := self._thread) is not None:
            thread.join()

    def _work(self) -> None:
        _spare_captures()
        try:
            while jobs := self._taken():
                chosen = jobs[0][1]
                self.status = "graphs are built"
                keys = [key for build, _ in jobs for key in self._built(build)]
                if keys and self._tuned(sorted(set(keys)), chosen):
                    for build, _ in jobs:
                        self._built(build)
        finally:
            with self._lock:
                if self._tuner is not None:  # an error came between
                    self._tuner.end()
                    self._tuner = None
                if self._thread is threading.current_thread():  # and no other one follows it
                    self._thread = None

    def _taken(self) -> list[tuple[Build, settings.Settings]]:
        """The graphs that wait and have the options of the first one; none: the thread ends."""
        self._await_idle()
        with self._lock:
            if self._is_closed or not self._waiting:
                self._thread = None  # before the lock goes: who comes next starts another
                return []
            first = self._waiting[0][1]
            taken = [each for each in self._waiting if each[1] == first]
            self._waiting = [each for each in self._waiting if each[1] != first]
            return taken

    def _built(self, build: Build) -> Sequence[str]:
        self._await_idle()
        if self._is_closed:
            return []
        try:
            return build()
        except errors.FelixError as error:
            self.status = f"a graph cannot be built: {error}"
            warnings.warn(f"felix: {self.status}", stacklevel=1)
            return []

    def _tuned(self, keys: Sequence[str], chosen: settings.Settings) -> bool:
        """Have tasks tuned; whether that came to its end."""
        assert chosen.seconds is not None  # else nothing is done in the background
        self.status = f"{len(keys)} tasks are tuned, for {chosen.seconds:g} s at most"
        with self._lock:
            if self._is_closed:
                return False
            self._tuner = tuner = _Tuner(keys, chosen)
        while not tuner.has_ended:
            with self._lock:
                if self._is_idle():
                    tuner.resume()
                else:
                    tuner.pause()
            time.sleep(_POLL_S)
        with self._lock:
            self._tuner = None
        said = tuner.close()
        self.status = f"{len(keys)} tasks were tuned{f': {said}' if said else ''}"
        return not self._is_closed

    def _await_idle(self) -> None:
        while not self._is_closed:
            with self._lock:
                if self._is_idle():
                    return
            time.sleep(_POLL_S)

    def _is_idle(self) -> bool:
        if self._n_calls or time.monotonic() - self._last_s < IDLE_S or _is_compiling():
            return False
        return self._event is None or self._event.query()


class _Tuner:
    """The process that tunes."""

    def __init__(self, keys: Sequence[str], chosen: settings.Settings) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="felix-tuned-")
        known = store.Store(chosen.known_results)
        request = {"known_results": str(known.path), "seconds": chosen.seconds, "keys": list(keys)}
        child.pose(self._folder.name, request)
        log = pathlib.Path(self._folder.name, child.LOG)
        with open(log, "wb") as file:
            self._process: subprocess.Popen[bytes] = child.start(
                background_main.__name__,
                self._folder.name,
                str(os.getpid()),
                environment={**os.environ, **child.for_child(os.environ, {})},
                log=file,
            )
        self._owner = os.getpid()  # a fork of this process leaves it alone
        self._may_run = True
        self._is_still = False

    @property
    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def pause(self) -> None:
        """Stop it; called again, what it was starting at that moment, too."""
        if self._is_still or os.getpid() != self._owner:
            return
        self._is_still = not self._may_run and process_tree.is_still(self._process.pid)
        if not self._is_still:
            process_tree.stop(self._process.pid)
        self._may_run = False

    def resume(self) -> None:
        if not self._may_run:
            process_tree.resume(self._process.pid)
            self._may_run, self._is_still = True, False

    def end(self) -> None:
        """Kill it; the system kills its workers."""
        if os.getpid() == self._owner:
            self._process.kill()

    def close(self) -> str:
        """Remove what it has left; why it tuned less than it was asked, if it did."""
        try:
            summary = child.answer_in(self._folder.name, self._process.returncode)
        except child.Unanswered as error:
            return f"{error} (exit status {error.status})"
        finally:
            self._folder.cleanup()
        left = summary["left"]
        return f"{len(left)} are left: {left[0]['reason']}" if left else ""


def _is_compiling() -> bool:
    """Whether PyTorch compiles a graph, which a call waits for."""
    if not convert_frame.compile_lock.acquire(blocking=False):
        return True
    convert_frame.compile_lock.release()
    return False


def _recorded() -> Any:
    """An event of the GPU after what it was given so far; None without a GPU."""
    cuda: Any = torch.cuda
    if not cuda.is_initialized() or executable.is_capturing():
        return None
    event = cuda.Event()
    event.record()
    return event


def _spare_captures() -> None:
    """Let this thread's calls of CUDA leave captures of other threads valid."""
    with contextlib.suppress(driver.NoDriver):
        mode = ctypes.c_int(_RELAXED)
        driver.libcuda().cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))
