"""A network of its own for some processes, with a link that can be cut: Linux and root only."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator

#: Addresses of the two ends, of a block for tests (RFC 2544).
HERE, THERE = "198.18.7.1", "198.18.7.2"


class Namespace:
    """A network namespace and the pair of interfaces that joins it to this one."""

    def __init__(self) -> None:
        self.name = f"felix{os.getpid()}"
        self._here, self._there = f"fx{os.getpid()}a", f"fx{os.getpid()}b"

    @property
    def within(self) -> tuple[str, ...]:
        """A command that starts others in it."""
        return "ip", "netns", "exec", self.name

    def make(self) -> None:
        """Make it; CalledProcessError if this user may not."""
        _ip("netns", "add", self.name)
        _ip(
            "link",
            "add",
            self._here,
            "type",
            "veth",
            "peer",
            "name",
            self._there,
            "netns",
            self.name,
        )
        _ip("addr", "add", f"{HERE}/30", "dev", self._here)
        _ip("-n", self.name, "addr", "add", f"{THERE}/30", "dev", self._there)
        _ip("-n", self.name, "link", "set", "lo", "up")
        _ip("-n", self.name, "link", "set", self._there, "up")
        self.join()

    def cut(self) -> None:
        """Let nothing through."""
        _ip("link", "set", self._here, "down")

    def join(self) -> None:
        """Let everything through."""
        _ip("link", "set", self._here, "up")

    def remove(self) -> None:
        """Remove what there is of it."""
        for command in (("link", "del", self._here), ("netns", "del", self.name)):
            with contextlib.suppress(subprocess.CalledProcessError):
                _ip(*command)


@contextlib.contextmanager
def made() -> Iterator[Namespace | str]:
    """A namespace, or why none can be made."""
    if shutil.which("ip") is None:
        yield "there is no command ip"
        return
    namespace = Namespace()
    try:
        namespace.make()
    except subprocess.CalledProcessError as error:
        namespace.remove()
        yield f"network namespaces cannot be made: {error.stderr.strip()}"
        return
    try:
        yield namespace
    finally:
        namespace.remove()


def _ip(*arguments: str) -> None:
    subprocess.run(("ip", *arguments), check=True, capture_output=True, text=True)
