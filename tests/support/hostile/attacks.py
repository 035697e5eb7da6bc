"""What an intruder in a confined process tries: code that needs nothing but Python.

Its text is run in the process under attack, where this file cannot be read. `run` tries everything
of `facts` and returns what came of each attack: None where it was refused, else the harm in words.
Where an attack succeeds it changes nothing outside of the folders of `facts`.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
from typing import Any

#: Harmless to a process that does not wait for it.
_SIGNAL = signal.SIGURG
_PTRACE_SEIZE = 0x4206
_PR_SET_PDEATHSIG = 1


def run(facts: dict[str, Any]) -> dict[str, str | None]:
    """Try everything; harm by the name of the attack."""
    attacks = {
        **{f"read {path}": lambda p=path: _read(p) for path in [*facts["files"], "/etc/passwd"]},
        **{f"list {path}": lambda p=path: os.listdir(p) for path in facts["folders"]},
        **{f"write in {path}": lambda p=path: _write(p + "/x") for path in facts["folders"]},
        **{f"change {path}": lambda p=path: _append(p) for path in facts["files"]},
        **{f"permit {path}": lambda p=path: os.chmod(p, 0o666) for path in facts["files"]},
        **{f"truncate {path}": lambda p=path: os.truncate(p, 0) for path in facts["victims"]},
        **{f"delete {path}": lambda p=path: os.unlink(p) for path in facts["victims"]},
        **{f"link to {path}": lambda p=path: _link(os.symlink, p) for path in facts["files"]},
        **{f"copy {path}": lambda p=path: _link(os.link, p) for path in facts["victims"]},
        **{f"connect to {port}": lambda p=port: _connect(p) for port in facts["ports"]},
        **{f"local {path}": lambda p=path: _local(p) for path in facts["sockets"]},
        **{f"datagram to {path}": lambda p=path: _datagram(p) for path in facts["datagrams"]},
        **{f"signal {pid}": lambda p=pid: os.kill(p, _SIGNAL) for pid in facts["pids"]},
        **{f"trace {pid}": lambda p=pid: _trace(p) for pid in facts["pids"]},
        **{f"environment of {pid}": lambda p=pid: _environment(p) for pid in facts["pids"]},
        **{
            f"memory of {pid}": lambda p=pid: open(f"/proc/{p}/mem", "rb") for pid in facts["pids"]
        },
        **{f"read memory of {pid}": lambda p=pid: _read_memory(p) for pid in facts["pids"]},
        **{f"limits of {pid}": lambda p=pid: _limits(p) for pid in facts["pids"]},
        "send a packet": lambda: _packet(),
        "listen": lambda: _listen(),
        "own the environment": lambda: _secret_in_environment(facts["shifted_secret"]),
        "own the memory": lambda: _secret_in_memory(facts["shifted_secret"]),
        "inherited files": lambda: _inherited(facts["open_files"]),
        "open 5,000 files": lambda: [open(os.devnull) for _ in range(5000)],
        "a namespace": lambda: _unshare(),
        "mount": lambda: _mount(),
        "a program of its own": lambda: _script(),
        "privileges": lambda: _privileges(),
    }
    if not facts["programs"]:
        attacks["a program"] = lambda: subprocess.run(["/bin/true"], check=True)
        attacks["a process"] = lambda: _process()
    if not facts["leads"]:
        attacks["signal the group"] = lambda: os.kill(0, _SIGNAL)
        attacks["signal all"] = lambda: os.kill(-1, 0)  # Linux says yes where it reaches nobody
        attacks["leave the session"] = lambda: os.setsid()
        attacks["outlive the parent"] = lambda: _prctl(_PR_SET_PDEATHSIG)
    return {name: _harm(attack) for name, attack in attacks.items()}


def _harm(attack: Any) -> str | None:
    try:
        return f"done: {str(attack())[:80]}"
    except (OSError, subprocess.SubprocessError):
        return None


def _link(make: Any, path: str) -> None:
    place = f"link-{os.urandom(4).hex()}"
    make(path, place)
    os.unlink(place)


def _write(path: str) -> None:
    with open(path, "w") as file:
        file.write("x")


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def _append(path: str) -> None:
    with open(path, "a") as file:
        file.write("x")


def _connect(port: int) -> None:
    socket.create_connection(("127.0.0.1", port), timeout=5).close()


def _local(path: str) -> None:
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(path.replace("@", "\0"))


def _datagram(path: str) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with ours, theirs:
        ours.sendto(b"x", path)


def _packet() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.sendto(b"x", ("127.0.0.1", 9))


def _listen() -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))


def _libc(name: str, *arguments: Any) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    result: int = getattr(libc, name)(*arguments)
    if result < 0:
        raise OSError(ctypes.get_errno(), name)
    return result


def _trace(pid: int) -> int:
    return _libc("ptrace", ctypes.c_long(_PTRACE_SEIZE), pid, None, None)


def _environment(pid: int) -> bytes:
    with open(f"/proc/{pid}/environ", "rb") as file:
        return file.read()


def _read_memory(pid: int) -> int:
    class Vector(ctypes.Structure):
        _fields_ = (("base", ctypes.c_void_p), ("size", ctypes.c_size_t))

    buffer = ctypes.create_string_buffer(8)
    ours, theirs = Vector(ctypes.addressof(buffer), 8), Vector(id(None), 8)
    result = ctypes.CDLL(None, use_errno=True).process_vm_readv(
        pid, ctypes.byref(ours), 1, ctypes.byref(theirs), 1, 0
    )
    if result < 0 and ctypes.get_errno() != 14:  # EFAULT: nothing there, but it may look
        raise OSError(ctypes.get_errno(), "process_vm_readv")
    return int(result)


def _limits(pid: int) -> Any:
    import resource

    return resource.prlimit(pid, resource.RLIMIT_CORE, resource.prlimit(pid, resource.RLIMIT_CORE))


def _prctl(option: int) -> int:
    zero = ctypes.c_ulong(0)
    return _libc("prctl", option, zero, zero, zero, zero)


def _unshare() -> int:
    return _libc("unshare", 0x10000000)


def _mount() -> str:
    """Asks for a mount that cannot be made: who may ask learns that the place does not exist."""
    with contextlib.suppress(FileNotFoundError):
        _libc("mount", b"none", b"/no/such/place", b"tmpfs", ctypes.c_ulong(0), None)
    return "it may ask"


def _script() -> Any:
    """Runs a script that it wrote itself."""
    path = os.path.abspath("program")
    handle = os.open(path, os.O_WRONLY | os.O_CREAT, 0o755)
    os.write(handle, b"#!/bin/sh\nexit 0\n")
    os.close(handle)
    try:
        return subprocess.run([path], check=True)
    finally:
        os.unlink(path)


def _process() -> int:
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    return os.waitpid(pid, 0)[0]


def _privileges() -> str:
    with open("/proc/self/status") as file:
        fields = dict(line.split(":\t") for line in file if ":\t" in line)
    if int(fields["CapEff"], 16) or (int(fields["CapBnd"], 16) and os.getuid() == 0):
        return fields["CapEff"]
    raise PermissionError


def _inherited(expected: int) -> list[str]:
    names = []
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            names.append(os.readlink(f"/proc/self/fd/{name}"))
    if len(names) <= expected:
        raise PermissionError
    return names


def _secret_in_environment(shifted: str) -> str:
    with open("/proc/self/environ", "rb") as file:
        text = file.read() + repr(dict(os.environ)).encode()
    if shifted.encode() not in _shifted(text):
        raise PermissionError
    return "it has the secret"


def _secret_in_memory(shifted: str) -> str:
    """Looks through all that this process could write, for a secret that it knows shifted by 1."""
    with open("/proc/self/maps") as maps, open("/proc/self/mem", "rb", buffering=0) as memory:
        for line in list(maps):
            fields = line.split()
            start, end = (int(text, 16) for text in fields[0].split("-"))
            if not fields[1].startswith("rw") or end - start > 1 << 30:
                continue
            with contextlib.suppress(OSError):
                memory.seek(start)
                while start < end:
                    chunk = memory.read(min(1 << 24, end - start))
                    if shifted.encode() in _shifted(chunk):
                        return f"the secret is at {line}"
                    start += max(1, len(chunk))
    raise PermissionError


def _shifted(text: bytes) -> bytes:
    return text.translate(bytes([*range(1, 256), 0]))
