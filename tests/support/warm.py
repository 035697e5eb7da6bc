"""Python programs that need not load PyTorch and TVM: forks of a process that has.

Tests start some hundred programs of ours (workers of pools, search processes, command lines),
each of which would import for seconds. `Popen` is `subprocess.Popen`, except that what `is_warm`
says is a fork of one process of this module, with the program's arguments, environment, folder and
files; it becomes a child of the caller as any other. `conftest` puts it in the place of
`subprocess.Popen`; a test marked `fresh_processes` starts all anew. Workers of pytest-xdist are
forks, too, but import what is ours themselves, so that a measurement of coverage sees it.
"""

from __future__ import annotations

import array
import atexit
import contextlib
import ctypes
import fcntl
import gc
import importlib
import inspect
import json
import multiprocessing.util
import os
import pathlib
import runpy
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from typing import Any

from felix.processes import child

ROOT = pathlib.Path(__file__).parents[2]
#: Packages whose modules are forked when run by `python -m`.
PACKAGES = ("felix", "server", "costmodel", "tvm")
#: What the process loads as it starts, and before it is the first program of ours.
LIBRARIES = ("torch", "torch._dynamo", "tvm", "tvm.s_tir.meta_schedule", "scipy.stats")
OURS = ("felix.cli.main", "felix.tuning.tune", "felix.measure.local")
#: The command line of a worker of pytest-xdist, by execnet.
WORKER = ["-u", "-c", "import sys;exec(eval(sys.stdin.readline()))"]
#: Variables that programs and libraries read as they start; with other ones they start anew.
READ_AT_START = ("CUDA_", "LD_", "MALLOC_", "PYTHONHASHSEED", "TORCH_", "TVM_")
_PR_SET_NAME, _PR_SET_CHILD_SUBREAPER = 15, 36
_MADV_COLLAPSE = 25
#: Bytes of a huge page.
_HUGE = 1 << 21
_PACKET_BYTES = 1 << 17
_READY = b"ready"
#: Descriptors are moved here before they get their numbers.
_FREE_FD = 500

_Popen = subprocess.Popen
_spawn = multiprocessing.util.spawnv_passfds
_libc = ctypes.CDLL(None)


class _Forks:
    """The process that is forked, started when it is first needed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._owner = os.getpid()
        self._read_at_start = _read_at_start(os.environ)
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        #: Whether programs are forked; not in a test that is about their start, and not where the
        #: libraries leave a thread behind, as those for a GPU do.
        self.are_used = True
        self._has_failed = False

    def can_be(self, env: dict[str, str]) -> bool:
        """Whether a program of this environment may be one; a fork of this process has none."""
        if not self.are_used or os.getpid() != self._owner:
            return False
        if _read_at_start(env) != self._read_at_start:
            return False
        with self._lock:
            if self._control is None and not self._has_failed:
                self._start()
        return not self._has_failed

    def fork(self, request: dict[str, Any], fds: list[int]) -> int:
        """Pid of a new child of this process that does what is requested."""
        with self._lock:
            assert self._control is not None
            # The child's parent ends at once, and this process adopts the child.
            _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
            try:
                packet = json.dumps(request | {"parent": os.getpid()}).encode()
                rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))]
                self._control.sendmsg([packet], rights)
                answer = self._control.recv(_PACKET_BYTES)
            finally:
                _libc.prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
        assert answer, "the process that is forked has ended"
        return int(answer)

    def take(self, control: socket.socket) -> None:
        """Be those of this process, which `main` behind the socket forks."""
        self._owner, self._control = os.getpid(), control

    def close(self) -> None:
        """End it."""
        if self._control is not None and self._process is not None:
            self._control.close()
            self._process.wait()
        self._control = self._process = None

    def _start(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        paths = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        with theirs:
            self._process = _Popen(
                [sys.executable, "-m", __name__, str(theirs.fileno())],
                env=os.environ | child.ONE_THREAD | {"PYTHONPATH": paths},
                cwd=ROOT,
                pass_fds=[theirs.fileno()],
            )
        self._control = ours
        if self._control.recv(_PACKET_BYTES) != _READY:
            self.close()
            self._has_failed = True


def _read_at_start(env: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in env.items() if name.startswith(READ_AT_START)}


forks = _Forks()


class Popen(_Popen):  # type: ignore[type-arg]
    """`subprocess.Popen`, with `warm` to have a program of the caller's forked, too."""

    def __init__(self, args: Any, *rest: Any, warm: bool = False, **options: Any) -> None:
        self._asked = warm
        super().__init__(args, *rest, **options)

    def _execute_child(self, *arguments: Any) -> None:
        start = super()._execute_child  # type: ignore[misc]
        given = inspect.signature(start).bind(*arguments).arguments
        env = {os.fsdecode(k): os.fsdecode(v) for k, v in (given["env"] or os.environ).items()}
        is_meant = _is_plain(given) and (self._asked or is_warm(given["args"]))
        if not (is_meant and forks.can_be(env)):
            start(*arguments)
            return
        ends = {0: given["p2cread"], 1: given["c2pwrite"], 2: given["errwrite"]}
        targets = {number: fd if fd >= 0 else number for number, fd in ends.items()}
        inherited = given["pass_fds"] if given["close_fds"] else _inheritable()
        targets |= {fd: fd for fd in inherited}
        folder, is_first = given["cwd"] or os.getcwd(), given["start_new_session"]
        request = _request(given["args"][1:], env, folder, list(targets), is_first)
        self.pid = forks.fork(request, list(targets.values()))
        self._child_created = True
        pipes = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
        self._close_pipe_fds(*(given[name] for name in pipes))  # type: ignore[attr-defined]


def run(command: Sequence[str], **options: Any) -> subprocess.CompletedProcess[str]:
    """`subprocess.run` of Python with any text or file; what it prints is text."""
    return subprocess.run(command, capture_output=True, text=True, warm=True, **options)  # type: ignore[no-any-return, call-overload]


def spawn(path: bytes, args: Sequence[str | bytes], passfds: Sequence[int]) -> int:
    """`multiprocessing.util.spawnv_passfds`: a process of its context `spawn`."""
    command = [os.fsdecode(each) for each in args]
    command = [each for each in command if each != "-B"]  # says what is written, not what is run
    env = dict(os.environ)
    if not forks.can_be(env) or command[:2] != [sys.executable, "-c"]:
        return _spawn(path, args, passfds)
    targets = sorted({0, 1, 2, *passfds})
    return forks.fork(_request(command[1:], env, os.getcwd(), targets), targets)


def is_warm(args: Any) -> bool:
    """Whether a command is a worker, or a module of ours."""
    if isinstance(args, str | bytes | os.PathLike) or args[0] != sys.executable or len(args) < 3:
        return False
    if list(args[1:]) == WORKER:
        return True
    return args[1] == "-m" and args[2].partition(".")[0] in PACKAGES


def _request(
    argv: Sequence[Any], env: dict[str, str], cwd: Any, fds: list[int], session: bool = False
) -> dict[str, Any]:
    return {
        "argv": [os.fspath(each) for each in argv],
        "env": env,
        "cwd": os.fspath(cwd),
        "fds": fds,
        "session": session,
        "cores": sorted(os.sched_getaffinity(0)),
    }


def _inheritable() -> list[int]:
    found = []
    for number in map(int, os.listdir("/proc/self/fd")):
        with contextlib.suppress(OSError):  # of the listing itself
            if number > 2 and os.get_inheritable(number):
                found.append(number)
    return found


def _is_plain(given: dict[str, Any]) -> bool:
    return given["preexec_fn"] is None and given["umask"] < 0 and given["process_group"] < 0


def main(descriptor: int) -> None:
    """Load what programs need; fork one for each request, until there are no more."""
    control = socket.socket(fileno=descriptor)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])  # who starts it may have blocked SIGTERM
    sys.modules[__spec__.name] = sys.modules[__name__]  # a worker imports what has its forks
    _load(LIBRARIES)
    if len(os.listdir("/proc/self/task")) > 1:
        return  # a fork would have one of the threads
    control.send(_READY)
    _serve(control)


def _load(modules: Sequence[str]) -> None:
    gc.disable()
    for name in modules:
        importlib.import_module(name)
    gc.freeze()
    gc.enable()
    _collapse()


def _collapse() -> None:
    """Have the memory in huge pages, which makes a fork cost half: its page tables are small."""
    for line in pathlib.Path("/proc/self/maps").read_text().splitlines():
        place, rights, *rest = line.split()
        if rights != "rw-p" or rest[3:] not in ([], ["[heap]"]):
            continue
        begin, end = (int(each, 16) for each in place.split("-"))
        for address in range(-(-begin // _HUGE) * _HUGE, end // _HUGE * _HUGE, _HUGE):
            # Where the kernel does not do it, nothing changes.
            _libc.madvise(ctypes.c_void_p(address), ctypes.c_size_t(_HUGE), _MADV_COLLAPSE)


def _serve(control: socket.socket) -> None:
    while True:
        packet, fds, _, _ = socket.recv_fds(control, _PACKET_BYTES, 64)
        if not packet:
            return
        request = json.loads(packet)
        if request["argv"] != WORKER and OURS[-1] not in sys.modules:
            _load(OURS)
        first = os.fork()
        if first == 0:
            between = os.getpid()
            if os.fork() == 0:
                _be(request, fds, control, between)
            os._exit(0)
        os.waitpid(first, 0)
        for fd in fds:
            os.close(fd)


def _be(request: dict[str, Any], fds: list[int], control: socket.socket, between: int) -> None:
    """Be the program that is requested, once the process `between` has ended; no return."""
    code = 1
    try:
        while os.getppid() == between:
            time.sleep(0.0002)
        if os.getppid() != request["parent"]:
            os._exit(code)  # who asked has ended
        if request["session"]:
            os.setsid()
        control.send(str(os.getpid()).encode())
        control.close()
        argv = request["argv"]
        if argv == WORKER or argv[:2] == ["-m", "felix"] or argv[0].endswith(".py"):
            _fork_programs_of_it(fds)
        _become(request, fds)
        code = _exit_code(argv)
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _fork_programs_of_it(fds: list[int]) -> None:
    """What the program itself starts is warm, too: forks of a process that it has beside it."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if os.fork() == 0:
        with contextlib.suppress(BaseException):
            os.setsid()  # out of the reach of signals to the program's group
            ours.close()
            for fd in fds:
                os.close(fd)
            _serve(theirs)
        os._exit(0)
    theirs.close()
    forks.take(ours)
    subprocess.Popen = Popen  # type: ignore[misc]
    multiprocessing.util.spawnv_passfds = spawn  # type: ignore[assignment]


def _become(request: dict[str, Any], fds: list[int]) -> None:
    """Have the environment, folder, cores and files of a program."""
    moved = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _FREE_FD) for fd in fds]
    for fd in fds:
        os.close(fd)
    for fd, number in zip(moved, request["fds"], strict=True):
        os.dup2(fd, number, inheritable=number < 3)
        os.close(fd)
    before = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    os.sched_setaffinity(0, request["cores"])
    paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    sys.path[:] = paths + [path for path in sys.path if path not in before]
    sys.argv[:] = request["argv"]
    if request["argv"][0] == "-m":
        module = request["argv"][1].rpartition(".")[2].encode()
        _libc.prctl(_PR_SET_NAME, module, 0, 0, 0)  # what `ps` and tests know it by
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()


def _exit_code(argv: list[str]) -> int:
    """Run `-m MODULE`, `-c TEXT` or a file with arguments, as Python does; `-P`, `-u` as well."""
    try:
        is_safe = argv[0] == "-P"  # no folder is searched for the program's sake
        argv = argv[argv[0] in ("-P", "-u") :]
        if argv[0] == "-m":
            sys.argv[:] = argv[1:]
            sys.path.insert(0, os.getcwd())
            runpy.run_module(argv[1], run_name="__main__", alter_sys=True)
        elif argv[0] == "-c":
            sys.argv[:] = ["-c", *argv[2:]]
            sys.path[:0] = [""][is_safe:]
            module = type(sys)("__main__")
            sys.modules["__main__"] = module
            exec(compile(argv[1], "<string>", "exec"), module.__dict__)
        else:
            sys.path.insert(0, os.path.dirname(os.path.abspath(argv[0])))
            runpy.run_path(argv[0], run_name="__main__")
    except SystemExit as left:
        if left.code is None or isinstance(left.code, int):
            return left.code or 0
        print(left.code, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        traceback.print_exc()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


if __name__ == "__main__":
    main(int(sys.argv[1]))
