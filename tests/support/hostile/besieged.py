"""A place full of what an intruder would like to have, and attacks on it as code to run."""

from __future__ import annotations

import dataclasses
import inspect
import json
import os
import pathlib
import socket
import sqlite3
from typing import Any, Self

from tests.support.hostile import attacks

SECRET = "postgresql://felix:hunter2-of-the-confinement-test@db.example/felix"
_MARK = "ATTACKS: "


@dataclasses.dataclass
class Besieged:
    """Data of a service in `folder`, listeners, processes; `facts` is what the intruder knows."""

    folder: pathlib.Path
    facts: dict[str, Any]
    sockets: list[socket.socket]

    @classmethod
    def make(cls, folder: pathlib.Path) -> Self:
        """Put an admin key, a database and listeners there."""
        data = folder / "data"
        data.mkdir()
        key, database, victim = data / "admin-key", data / "felix.db", data / "victim"
        key.write_text("flx_secret\n")
        key.chmod(0o600)
        sqlite3.connect(database).execute("create table keys (text)").connection.close()
        victim.write_text("data")
        tcp, local, abstract, datagram = (
            socket.socket(family, kind)
            for family, kind in (
                (socket.AF_INET, socket.SOCK_STREAM),
                (socket.AF_UNIX, socket.SOCK_STREAM),
                (socket.AF_UNIX, socket.SOCK_STREAM),
                (socket.AF_UNIX, socket.SOCK_DGRAM),
            )
        )
        tcp.bind(("127.0.0.1", 0))
        local.bind(str(data / "socket"))
        abstract.bind(f"\0felix-test-{os.getpid()}-{data.parent.name}")
        datagram.bind(str(data / "datagram"))
        for listener in (tcp, local, abstract):
            listener.listen(20)
        facts = {
            "files": [str(key), str(database)],
            "folders": [str(data), str(folder)],
            "victims": [str(victim)],
            "ports": [tcp.getsockname()[1], 5432],
            "sockets": [local.getsockname(), abstract.getsockname().decode().replace("\0", "@")],
            "datagrams": [datagram.getsockname()],
            "pids": [os.getpid()],
            "shifted_secret": "".join(chr(ord(letter) + 1) for letter in SECRET),
            "open_files": 5,  # standard ones, the pipe, the folder that is listed
            "programs": False,
            "leads": False,
        }
        return cls(folder, facts, [tcp, local, abstract, datagram])

    def close(self) -> None:
        """End the listeners."""
        for each in self.sockets:
            each.close()

    def code(self, **facts: Any) -> str:
        """Python that tries all attacks and writes what came of them to standard error.

        It tries nothing where a file of the service can be read: that is no confined process.
        """
        known = json.dumps(self.facts | facts)
        source = inspect.getsource(attacks)
        return (
            f"import json, os\nspace = {{'__name__': 'attacks'}}\nexec({source!r}, space)\n"
            f"facts = json.loads({known!r})\n"
            "try: open(facts['files'][0]).close(); outcome = {}\n"
            "except PermissionError: outcome = space['run'](facts)\n"
            f"os.write(2, ('\\n{_MARK}' + json.dumps(outcome) + '\\n').encode())\n"
        )

    def harm(self, log: str) -> dict[str, str]:
        """The attacks that succeeded, from what `code` wrote; there must be some attacks."""
        lines = [line for line in log.splitlines() if line.startswith(_MARK)]
        assert lines, f"the attacks did not run: {log[-2000:]}"
        outcome = json.loads(lines[-1].removeprefix(_MARK))
        assert len(outcome) > 30, "it is not confined at all"
        return {name: harm for name, harm in outcome.items() if harm is not None}
