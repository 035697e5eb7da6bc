"""A child that runs a module of ours: started without what may be secret, out of the terminal's
reach, and removed with what it has left."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent import futures
from typing import Any, BinaryIO, TypeVar

from felix import files
from felix.processes import foreign

T = TypeVar("T")

# The environment of a child: what programs need to run, and nothing that may be a secret.

#: Variables that a child gets.
NAMES = frozenset({
    "CC", "CXX", "HOME", "LANG", "LANGUAGE", "LD_LIBRARY_PATH", "LD_PRELOAD", "PATH", "PYTHONHOME",
    "PYTHONPATH", "PYTHONHASHSEED", "PYTHONDONTWRITEBYTECODE", "PYTHONUNBUFFERED", "TMPDIR", "TZ",
    "USER", "LOGNAME", "VIRTUAL_ENV",
})  # fmt: skip
#: And those that begin so.
PREFIXES = ("LC_", "CUDA_", "NVIDIA_", "TVM_", "OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_",
            "TORCH_", "PYTORCH_", "TRITON_", "ATEN_", "DNNL_", "ONEDNN_", "MALLOC_", "ASAN_",
            "UBSAN_")  # fmt: skip
#: No threads of libraries for linear algebra before a process is confined: they would not be.
ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


def for_child(
    environment: Mapping[str, str], also: Mapping[str, str] = ONE_THREAD
) -> dict[str, str]:
    """The variables of `environment` that a child gets, `also`, and where it finds these packages
    and the cache of formulas.

    A child that is confined only in its forks, which have no thread yet, needs no `ONE_THREAD`.
    """
    passed = {
        name: value
        for name, value in environment.items()
        if name in NAMES or name.startswith(PREFIXES)
    }
    packages = str(pathlib.Path(__file__).resolve().parents[2])
    path = os.pathsep.join([packages, *filter(None, [environment.get("PYTHONPATH")])])
    cache = {"FELIX_CACHE_DIR": str(files.cache_folder())}
    return {**passed, **cache, **also, "PYTHONPATH": path}


# Removing what a process that may have been hostile has left.


def remove_tree(path: pathlib.Path) -> None:
    """Remove a file or a folder with all that is in it; nothing if it is not there."""
    if not path.is_dir() or path.is_symlink():
        path.unlink(missing_ok=True)
        return
    try:
        shutil.rmtree(path, ignore_errors=True)
    except RecursionError:  # folders nested deeper than Python follows
        with contextlib.suppress(RuntimeError):  # what it could not remove stays, as above
            foreign.run(["rm", "-rf", "--", str(path)])


def start(
    module: str,
    *arguments: str,
    environment: Mapping[str, str] | None = None,
    pass_fds: Sequence[int] = (),
    log: BinaryIO | int | None = subprocess.DEVNULL,
    leads_session: bool = True,
) -> subprocess.Popen[bytes]:
    """`python -m module arguments`: the one place where programs of ours start, beside `pool`.

    Args:
        environment: its variables; None: `for_child`.
        pass_fds: descriptors that it inherits.
        log: where it writes; None: where this process does.
        leads_session: whether Ctrl-C in a terminal is this process's alone to handle.

    Raises:
        OSError: it cannot be started.
    """
    return subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        env=for_child(os.environ) if environment is None else environment,
        pass_fds=pass_fds,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        start_new_session=leads_session,
    )


@contextlib.contextmanager
def pool(
    n: int, initializer: Callable[..., object] | None = None, initargs: tuple[Any, ...] = ()
) -> Iterator[futures.Executor]:
    """So many processes that call functions of ours on data of ours, by the standard library.

    They have this process's environment and rights. Threads of TVM and torch do not survive a
    fork, so they are fresh. Calls that have not begun when the block ends are cancelled.
    """
    context = multiprocessing.get_context("spawn")
    executor = futures.ProcessPoolExecutor(n, context, initializer, initargs)
    try:
        yield executor
    finally:
        executor.shutdown(cancel_futures=True)


# A child that is asked one question: it runs a module with a folder as its argument.

_REQUEST, _ANSWER = "request.json", "answer.json"
#: Where a child with a folder writes.
LOG = "log"
#: Of an answer and of a log that are read, at most: a child may be hostile.
MAX_ANSWER_BYTES, _MAX_LOG_BYTES = 16 << 20, 1 << 16


class Unanswered(Exception):
    """A child ended without an answer; the message is the last line that it wrote."""

    def __init__(self, said: str, status: int) -> None:
        super().__init__(said)
        self.status = status


class Question:
    """In the child: the request, and where the answer goes.

    Attributes:
        descriptors: what has to stay open when the child confines itself.
    """

    def __init__(self, folder: str) -> None:
        self.request: Any = json.loads(pathlib.Path(folder, _REQUEST).read_text())
        self._file = open(pathlib.Path(folder, _ANSWER), "w")
        self.descriptors = [self._file.fileno()]

    def answer(self, value: Any) -> None:
        """Answer, once; the value is JSON."""
        self._file.write(json.dumps(value))
        self._file.flush()


def ask(
    module: str, request: Any, timeout_s: float, environment: Mapping[str, str] | None = None
) -> Any:
    """What a module answers to a request, both JSON; nothing of the child is left then.

    Raises:
        TimeoutError, Unanswered, OSError: it did not end in time, gave none, did not start.
    """
    with tempfile.TemporaryDirectory(prefix="felix-work-") as folder:
        pose(folder, request)
        with open(pathlib.Path(folder, LOG), "wb") as log:
            process = start(module, folder, environment=environment, log=log)
        try:
            status = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"{module} takes more than {timeout_s:g} s") from None
        finally:
            end(process)
        return answer_in(folder, status)


def pose(folder: str, request: Any) -> None:
    """Put the request into the folder of a child."""
    pathlib.Path(folder, _REQUEST).write_text(json.dumps(request))


def answer_in(folder: str, status: int) -> Any:
    """What a child with a folder has answered before it ended with this status.

    Raises:
        Unanswered: nothing.
    """
    try:
        return json.loads(end_of(pathlib.Path(folder, _ANSWER), MAX_ANSWER_BYTES))
    except (OSError, ValueError, RecursionError):
        said = end_of(pathlib.Path(folder, LOG), _MAX_LOG_BYTES).strip().splitlines()
        raise Unanswered(said[-1] if said else "no message", status) from None


def end_of(path: pathlib.Path, n_bytes: int) -> str:
    """The last bytes of a file as text."""
    with open(path, "rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - n_bytes))
        return file.read(n_bytes).decode(errors="replace")


def end(process: subprocess.Popen[bytes]) -> None:
    """End a process that leads a session, and what it started; its number may be another's."""
    if process.poll() is None:
        end_group(process.pid, lambda _: process.wait())


def end_group(pid: int, wait: Callable[[int], T]) -> T:
    """End a process that leads a group, and what it started; what `wait` for it says."""
    signal_group(pid, signal.SIGKILL)
    return wait(pid)


def signal_group(pid: int, number: signal.Signals) -> None:
    """Send a signal to a process that leads a group, and what it started; to none if it ended."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, number)
