"""What an engine's process may do, and what it started in: a folder of its own.

An engine reads what it computes with, and writes a scratch folder and the formula cache. Its
measuring processes have the same rights at most, and give most of them up (`measure.rights`).
So an engine keeps the devices and files of a GPU's driver, which they need.
"""

from __future__ import annotations

import contextlib
import dataclasses
import glob
import importlib.util
import os
import pathlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from felix import errors, files
from felix.measure import rights
from felix.processes import confine, fork_loop, policy
from server import errors as service_errors
from server import logs

#: Of one engine: pipes of its pools and their workers, and a driver opens devices many times.
OPEN_FILES = 4096
#: Of the machine and its processes. Another process's environment and memory stay refused.
_OF_THE_MACHINE = ("/proc", "/sys", "/etc/fonts")
_OUR_PACKAGES = ("felix", "costmodel", "server")
#: By which Python knows that it is one of a virtual environment.
_VIRTUAL = os.path.join(sys.prefix, "pyvenv.cfg")


def variables() -> dict[str, str]:
    """Variables by which an engine finds folders that are not in its own, nor in its home."""
    return {
        "FELIX_CACHE_DIR": str(files.cache_folder()),
        "MPLCONFIGDIR": str(files.cache_folder() / "matplotlib"),
        files.LOCKS_VARIABLE: str(files.device_lock("*").parent),
    }


def prepare() -> None:
    """Make what engines use and may not make, before the first of them is confined."""
    for folder in _caches():
        with contextlib.suppress(OSError):  # a cache is of use where it can be made
            os.makedirs(folder, exist_ok=True)
    if rights.nvidia_devices():
        _make_device_locks()


def engine(folder: pathlib.Path) -> policy.Policy:
    """The rights of an engine with this scratch folder; call it in its process.

    Modules that are loaded say which packages it reads.
    """
    devices = rights.nvidia_devices()
    return policy.Policy(
        folder=str(folder),
        scratch=[str(folder), *_caches()],
        read=[
            *(*_OF_THE_MACHINE, _VIRTUAL),
            *(*_packages(), *rights.nvidia_files(), *_loaded_libraries()),
        ],
        names=[
            *sorted({os.path.dirname(package) for package in _packages()}),
            *(rights.NVIDIA_FOLDERS if devices else ()),
        ],
        devices=[*devices, *glob.glob(str(files.device_lock("*"))), *_names_of_threads()],
        execute=[os.path.dirname(os.path.realpath(sys.executable))],
        programs=True,
        leads=True,
        local_sockets=bool(devices),
        memory_files=bool(devices),
        open_files=OPEN_FILES,
    )


def _names_of_threads() -> Iterator[str]:
    """Where processes of a GPU's driver name their threads, without which it does not begin.

    Paths of the run workers do not exist yet, so it is all of `/proc`. Of what is there, a plain
    user may write little, and that of its own processes. Root could change the kernel's settings
    and does not get it, so beside a GPU its engines are not confined.
    """
    if rights.nvidia_devices():
        yield "/proc/self/task" if os.geteuid() == 0 else "/proc"


def _caches() -> list[str]:
    """Formulas, and the list of fonts for pictures."""
    return [str(files.cache_folder() / name) for name in ("formulas", "matplotlib")]


def _make_device_locks() -> None:
    """Make the locks of the GPUs in a process that ends: CUDA must not be begun before a fork."""
    # It brings numpy, which a tuner's process does not load.
    from felix.measure import locks
    from felix.runner.cuda import devices

    def make() -> None:
        with contextlib.suppress(errors.MeasureError):  # the first pool says what is wrong
            for index in range(devices.count()):
                locks.for_gpu(index)

    fork_loop.in_fork(make)


def _packages() -> set[str]:
    """Folders of packages that are loaded, and of Felix's own.

    Python lists the folder that holds a package to find it again.
    """
    specs = [
        getattr(module, "__spec__", None)
        for name, module in list(sys.modules.items())
        if "." not in name
    ]
    specs += [importlib.util.find_spec(name) for name in _OUR_PACKAGES]
    locations = [spec.submodule_search_locations or () for spec in specs if spec is not None]
    return {folder for folders in locations for folder in folders}


def _loaded_libraries() -> Iterator[str]:
    """Files of native code that this process has loaded, wherever they lie."""
    with open("/proc/self/maps") as maps:
        fields = [line.rstrip("\n").split(maxsplit=5) for line in maps]
    yield from {each[5] for each in fields if len(each) == 6 and each[5].startswith("/")}


_log = logs.of(__name__)


@dataclasses.dataclass(frozen=True, slots=True)
class Start:
    """Whether an engine is confined, and what is asked of the run workers of its pools."""

    is_confined: bool
    run_workers: policy.ConfineGpu
    #: Why it is not confined; None if it is.
    reason: str | None = None


def choose(chosen: policy.ConfineGpu, attempt: Callable[[Start], str | None]) -> Start:
    """How engines start on this machine, which has an NVIDIA GPU.

    The first engine is the trial. It and its pools are made as later ones are, and each pool
    measures a small program before there is a client's.

    Args:
        chosen: the setting.
        attempt: makes an engine that starts so; returns why it or its GPU does not work, or None.

    Raises:
        SettingsError: engines have to be confined, and the GPU does not work in one that is.
    """
    if chosen is policy.ConfineGpu.OFF:
        return _unconfined(chosen, "FELIX_CONFINE_GPU is off")
    confined = Start(True, chosen)
    anyhow = Start(False, policy.ConfineGpu.AUTO)
    outcome = confine.decide(lambda is_confined: attempt(confined if is_confined else anyhow))
    reason = outcome.reason
    if reason is not None and not outcome.is_in_the_way:
        _log.error("the GPU cannot be used, confined or not: %s", reason, action="device_broken")
    if not outcome.is_in_the_way:
        return confined
    if chosen is policy.ConfineGpu.ON:
        raise service_errors.SettingsError(
            "confinement is required (FELIX_CONFINE_GPU=on or FELIX_REQUIRE_CONFINEMENT), and the "
            f"GPU does not work in a confined engine: {reason}. Run the service as a user other "
            "than root, or allow unconfined engines: FELIX_CONFINE_GPU=auto"
        )
    return _unconfined(
        policy.ConfineGpu.AUTO, f"the GPU does not work in a confined one: {reason}"
    )


def fault(devices: Sequence[Mapping[str, Any]]) -> str | None:
    """Why nothing can be measured on the GPU that an engine should have; None if it can."""
    gpus = [device for device in devices if device["kind"] == "cuda"]
    if not gpus:
        return "its driver finds no GPU"
    return next((str(gpu["fault"]) for gpu in gpus if gpu.get("fault")), None)


def described(devices: Sequence[Mapping[str, Any]], start: Start) -> list[dict[str, Any]]:
    """The devices of an engine, each with the reason if clients' programs run unconfined there."""
    if start.is_confined:
        return [dict(device) for device in devices]
    return [{**device, "unconfined": start.reason} for device in devices]


def _unconfined(run_workers: policy.ConfineGpu, reason: str) -> Start:
    _log.warning(
        "engines are not confined beside the NVIDIA GPU: %s", reason, action="confinement_missing"
    )
    return Start(False, run_workers, reason)
