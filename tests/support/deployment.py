"""The services of the compose file as processes of this machine: the same commands, by hand.

What names a container or its port is replaced: `postgres`, `ray-head`, 8000, 6379, 9190. A
service of the slim image runs without the packages that the image leaves out.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from typing import Any

import psutil
import yaml

from tests.support.cluster_machines import LIMIT_S, TOKEN, Processes, free_port

ROOT = pathlib.Path(__file__).parents[2]
DOCKERFILE = (ROOT / "Dockerfile").read_text()
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
#: Packages that the slim image leaves out.
LEFT_OUT = re.findall(r"--without ([\w ]+?) >", DOCKERFILE)[0].split()
#: TVM's tracker takes no port from here on.
TRACKER_END = 9199


def block(page: str, heading: str, number: int = 0) -> str:
    """A fenced block of shell commands under a heading of a page of docs/guide."""
    text = (ROOT / "docs" / "guide" / page).read_text()
    section = re.split(rf"^## {re.escape(heading)}$", text, flags=re.M)[1].split("\n## ")[0]
    return re.findall(r"^```\n(.*?)^```$", section, re.S | re.M)[number]


class Deployment(Processes):
    """Processes with one database, one data folder and ports of their own."""

    def __init__(self, folder: pathlib.Path, database_url: str) -> None:
        super().__init__(folder)
        self.data, self.database_url = folder / "data", database_url
        self.port, self._head = free_port(), free_port()
        self.tracker_port = _free_below(TRACKER_END)
        #: where the code of the running version lies
        self.source = ROOT
        #: Ray makes sockets in it, whose paths are limited to 107 bytes
        self._short = pathlib.Path(tempfile.mkdtemp(prefix="felix-ray-", dir="/tmp"))
        self._stubs = _stubs(folder / "left-out")

    def command(self, service: str) -> list[str]:
        """What the service runs, with this machine's names."""
        return [self._here(word) for word in SERVICES[service]["command"]]

    def environment_of(self, service: str) -> dict[str, str]:
        """The service's own variables, with this machine's names, and those of any process."""
        own = {name: self._here(text) for name, text in _environment(service).items()}
        places = {"FELIX_DATABASE_URL": self.database_url, "FELIX_DATA_DIR": str(self.data)}
        own |= {name: place for name, place in places.items() if name in own}
        if "FELIX_HOST" in own:
            own |= {"FELIX_HOST": "127.0.0.1", "FELIX_PORT": str(self.port)}
        is_slim = SERVICES[service].get("build", {}).get("target") == "slim"
        return self.shell() | {"PYTHONPATH": self._path(is_slim)} | own

    def shell(self) -> dict[str, str]:
        """What a person's shell has; no variable of ours from outside."""
        outside = {k: v for k, v in os.environ.items() if not k.startswith(("FELIX_", "RAY_"))}
        path = f"{pathlib.Path(sys.executable).parent}{os.pathsep}{outside.get('PATH', '')}"
        return outside | {
            "PATH": path,
            "PYTHONPATH": self._path(False),
            "RAY_TMPDIR": str(self._short),
            "FELIX_DATABASE_URL": self.database_url,
            "FELIX_DATA_DIR": str(self.data),
            "FELIX_PORT": str(self.port),
        }

    def serve(self, service: str) -> subprocess.Popen[bytes]:
        """Start a service."""
        return self.start(*self.command(service), environment=self.environment_of(service))

    def until_said(self, process: subprocess.Popen[bytes], words: str) -> None:
        """Wait until a process has written some words."""
        self.until(process, lambda said: words in said)

    def is_healthy(self, service: str) -> bool:
        """Whether the service's own check succeeds."""
        kind, *check = SERVICES[service]["healthcheck"]["test"]
        assert kind == "CMD"
        done = subprocess.run(
            [self._here(word) for word in check], env=self.shell(), capture_output=True
        )
        return done.returncode == 0

    def migrate(self) -> None:
        """Run the service that ends by itself."""
        process = self.serve("migrate")
        assert process.wait(LIMIT_S) == 0, self.log(process)

    def start_api(self) -> subprocess.Popen[bytes]:
        """Start an API server; ready when this returns."""
        process = self.serve("api")
        self.until(process, lambda _: self.is_healthy("api"))
        return process

    def start_tuner(self) -> subprocess.Popen[bytes]:
        """Start a tuner; ready when this returns."""
        process = self.serve("tuner")
        self.until_said(process, "is ready for")
        return process

    def end(self, process: subprocess.Popen[bytes]) -> None:
        """SIGTERM, as a supervisor ends a service; it has to obey."""
        process.send_signal(signal.SIGTERM)
        assert process.wait(LIMIT_S) is not None, self.log(process)

    def run(self, script: str, **environment: str) -> str:
        """What a shell script writes; it has to succeed."""
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script],
            cwd=self.folder,
            capture_output=True,
            text=True,
            env=self.shell() | environment,
            timeout=LIMIT_S,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def close(self) -> None:
        """End all, those too that a process left behind (`ray start`)."""
        super().close()
        for left in _with_variable("RAY_TMPDIR", str(self._short)):
            left.kill()
        shutil.rmtree(self._short, ignore_errors=True)

    def _path(self, is_slim: bool) -> str:
        return os.pathsep.join([*([str(self._stubs)] if is_slim else []), str(self.source)])

    def _here(self, text: str) -> str:
        for name, value in {
            "ray-head:6379": f"127.0.0.1:{self._head}",
            "--port=6379": f"--port={self._head}",
            "9190": str(self.tracker_port),
            ":8000": f":{self.port}",
        }.items():
            text = text.replace(name, value)
        return text


def _environment(service: str) -> dict[str, str]:
    """The service's variables, with what compose would take from outside."""
    variables = SERVICES[service].get("environment", {})
    token = {name: text.replace("${RAY_AUTH_TOKEN:-}", TOKEN) for name, text in variables.items()}
    return {name: without_absent(text) for name, text in token.items()}


def without_absent(text: str) -> str:
    """A value of the compose file where variables that may be absent are."""
    return re.sub(r"\$\{\w+:-\}", "", text)


def _free_below(end: int) -> int:
    """A port below another that nobody listens on."""
    for port in range(end - 1, 1024, -1):
        with contextlib.suppress(OSError), socket.socket() as free:
            free.bind(("0.0.0.0", port))
            return port
    raise OSError(f"no port below {end} is free")


def _stubs(folder: pathlib.Path) -> pathlib.Path:
    """Modules that fail as those do that are not installed."""
    folder.mkdir()
    for name in LEFT_OUT:
        (folder / f"{name}.py").write_text(f"raise ModuleNotFoundError({name!r}, name={name!r})\n")
    return folder


def _with_variable(name: str, value: str) -> list[psutil.Process]:
    """Processes of this user whose environment has a variable."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(name) == value:
                found.append(process)
        except psutil.Error:
            continue
    return found
