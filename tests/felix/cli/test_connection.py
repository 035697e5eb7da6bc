"""Where commands look for the service, and which key they send there."""

from __future__ import annotations

import argparse
import pathlib

import pytest

from felix import errors
from felix.cli import main
from felix.cli.remote import connection
from tests.support import live_service


def url(tmp_path: pathlib.Path, option: str | None = None, **environment: str) -> str:
    """The service's address for a caller who brings a key."""
    arguments = argparse.Namespace(url=option, key_file=None)
    with connection.connect(arguments, {"FELIX_API_KEY": "k", **environment}) as service:
        return service._http.url


@pytest.mark.parametrize(
    ("environment", "address"),
    [
        ({}, "http://127.0.0.1:8000"),
        ({"FELIX_PORT": "9000"}, "http://127.0.0.1:9000"),
        ({"FELIX_HOST": "felix.lan", "FELIX_PORT": "9000"}, "http://felix.lan:9000"),
        ({"FELIX_HOST": "0.0.0.0"}, "http://127.0.0.1:8000"),
        ({"FELIX_HOST": "::"}, "http://[::1]:8000"),
        ({"FELIX_PORT": "", "FELIX_HOST": "", "FELIX_URL": ""}, "http://127.0.0.1:8000"),
        ({"FELIX_URL": "https://felix.example", "FELIX_PORT": "9000"}, "https://felix.example"),
    ],
)
def test_the_address_is_that_of_felix_serve(
    tmp_path: pathlib.Path, environment: dict[str, str], address: str
) -> None:
    assert url(tmp_path, **environment) == address
    assert url(tmp_path, "http://other:1", **environment) == "http://other:1"


@pytest.mark.parametrize("port", ["http", "0", "65536", "-1"])
def test_a_port_that_is_none_is_named(tmp_path: pathlib.Path, port: str) -> None:
    with pytest.raises(errors.FelixError, match=f"FELIX_PORT is '{port}'"):
        url(tmp_path, FELIX_PORT=port)


@pytest.mark.parametrize(
    ("address", "is_sent"),
    [
        ("http://127.0.0.1:9000", True),
        ("http://localhost:9000/", True),
        ("http://127.0.0.1:8000", False),
        ("http://felix.example:9000", False),
        ("https://127.0.0.1:9000", False),
        ("http://127.0.0.1:9000@felix.example", False),
        ("http://127.0.0.1:x", False),
    ],
)
def test_the_key_of_this_machine_goes_to_its_service_only(
    tmp_path: pathlib.Path, address: str, is_sent: bool
) -> None:
    (tmp_path / connection.KEY_FILE).write_text("key of this machine\n")
    environment = {"FELIX_DATA_DIR": str(tmp_path), "FELIX_PORT": "9000", "FELIX_URL": address}
    arguments = argparse.Namespace(url=None, key_file=None)
    if is_sent:
        connection.connect(arguments, environment).close()
        return
    with pytest.raises(errors.FelixError, match="an API key is needed"):
        connection.connect(arguments, environment)


def test_commands_reach_a_service_on_another_port(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the settings of `felix serve` alone: no URL, no key."""
    with live_service.serving(tmp_path) as live:
        (tmp_path / connection.KEY_FILE).write_text(live.key.text)
        monkeypatch.setenv("FELIX_DATA_DIR", str(tmp_path))
        monkeypatch.setenv("FELIX_PORT", str(live.port))
        for name in ("FELIX_URL", "FELIX_API_KEY", "FELIX_HOST"):
            monkeypatch.delenv(name, raising=False)
        assert main.main(["ls", "--json"]) == 0
        assert capsys.readouterr().out.strip() == "[]"
        assert main.main(["keys", "ls", "--json"]) == 0
        assert '"name": "all"' in capsys.readouterr().out
