"""What a confined process may do. Everything else is refused by the system."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Sequence


class ConfineGpu(enum.StrEnum):
    """Whether processes are confined that use an NVIDIA GPU, whose driver may need more rights."""

    #: Where the driver works in a confined process, which is tried before any client's program.
    AUTO = "auto"
    #: Always: where the driver does not work so, it is an error.
    ON = "on"
    OFF = "off"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Rights and limits of one process and of all that it starts; None: no limit.

    Python, its installed packages, the system's libraries and the process's own part of `/proc`
    can be read always. Paths that do not exist count for nothing.
    """

    #: The working folder, the home and the place of temporary files; may be read.
    folder: str
    #: Folders whose files may be read, written, made and removed.
    scratch: Sequence[str] = ()
    #: More files and folders to read.
    read: Sequence[str] = ()
    #: Files and folders to read, write and empty, `ioctl` included; nothing may be made there.
    devices: Sequence[str] = ()
    #: Folders of which only the names can be read, with those of all that is in them.
    names: Sequence[str] = ()
    #: Programs to start, beside those of the system, with `programs`.
    execute: Sequence[str] = ()
    #: May start programs of the system, such as a linker.
    programs: bool = False
    #: May start and lead processes: groups and sessions of its own, signals, ends with a parent.
    #: Signals reach only what it has started, from Landlock 6 on. It moves files from one folder
    #: of `scratch` to another; Landlock 1 would forbid that, and is not used.
    leads: bool = False
    #: May make local sockets. They find nobody to connect to, but some libraries fail without one.
    local_sockets: bool = False
    #: May make files in memory (`memfd_create`).
    memory_files: bool = False
    #: Of one file.
    file_bytes: int | None = None
    #: Of address space.
    address_bytes: int | None = None
    #: Of memory of its own, which address space that is only reserved does not count to.
    data_bytes: int | None = None
    #: CPU time of its whole life, in seconds.
    cpu_s: int | None = None
    open_files: int = 256
