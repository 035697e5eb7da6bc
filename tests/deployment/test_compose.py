"""The compose file and the Dockerfile against what they name: commands, settings, files."""

from __future__ import annotations

import pathlib
import re
import tomllib
from typing import Any

import pytest
import yaml

from felix.cli import main
from server import settings

ROOT = pathlib.Path(__file__).resolve().parents[2]
DOCKERFILE = (ROOT / "Dockerfile").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OURS = {name: one for name, one in SERVICES.items() if "build" in one}

#: What each condition requires of the service that is waited for.
CONDITIONS = {
    "service_healthy": lambda one: "healthcheck" in one,
    "service_completed_successfully": lambda one: one["command"] == ["felix", "db", "upgrade"],
}


def test_services_wait_for_services_that_can_be_waited_for() -> None:
    assert set(OURS) == {"upgrade", "api", "tuner"} and set(SERVICES) - set(OURS) == {"postgres"}
    for one in OURS.values():
        for name, how in one["depends_on"].items():
            assert CONDITIONS[how["condition"]](SERVICES[name])


@pytest.mark.parametrize("name", OURS)
def test_commands_exist(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    program, *arguments = OURS[name]["command"]
    assert program in PROJECT["project"]["scripts"]
    with pytest.raises(SystemExit) as ended:
        main.main([*arguments, "--help"])  # options before it are parsed, too
    assert ended.value.code == 0 and "usage: felix" in capsys.readouterr().out


@pytest.mark.parametrize("name", OURS)
def test_settings_exist_and_lead_to_the_database(name: str) -> None:
    environment = OURS[name]["environment"]
    password = COMPOSE["services"]["postgres"]["environment"]["POSTGRES_PASSWORD"]
    assert password.startswith("${FELIX_DB_PASSWORD:?")  # compose refuses to start without one
    known = {f"FELIX_{field.upper()}" for field in settings.Settings.model_fields}
    assert set(environment) <= known
    filled = {
        key: value.replace("${FELIX_DB_PASSWORD}", "pw") for key, value in environment.items()
    }
    chosen = settings.Settings.from_environment(filled)
    postgres = SERVICES["postgres"]["environment"]
    assert chosen.database == (
        f"postgresql+psycopg://{postgres['POSTGRES_USER']}:pw@postgres/{postgres['POSTGRES_DB']}"
    )
    assert chosen.log_json  # keys are printed for people only


def test_api_and_tuner_share_their_blobs_and_the_port_is_this_machine_s() -> None:
    for name in ("api", "tuner"):
        folder = OURS[name]["environment"]["FELIX_DATA_DIR"]
        assert f"data:{folder}" in OURS[name]["volumes"]
        assert f"mkdir {folder} && chown felix {folder}" in DOCKERFILE
    named = {
        volume.partition(":")[0] for one in SERVICES.values() for volume in one.get("volumes", [])
    }
    assert named == set(COMPOSE["volumes"])
    (port,) = OURS["api"]["ports"]
    assert port == f"127.0.0.1:8000:{settings.Settings().port}"
    assert OURS["api"]["environment"]["FELIX_HOST"] == "0.0.0.0"


def test_the_image_has_what_the_package_needs() -> None:
    copied = {
        source
        for line in re.findall(r"^COPY (.+)$", DOCKERFILE, re.MULTILINE)
        for source in line.split()[:-1]
    }
    packages = {
        name.rstrip("*") for name in PROJECT["tool"]["setuptools"]["packages"]["find"]["include"]
    }
    assert copied == packages | {"pyproject.toml", "README.md", "LICENSE"}
    ignored = (ROOT / ".dockerignore").read_text().split()
    for source in copied:
        assert (ROOT / source).exists() and source not in ignored
    assert PROJECT["project"]["readme"] in copied
    (torch,) = (one for one in PROJECT["project"]["dependencies"] if one.startswith("torch=="))
    assert f" {torch} " in DOCKERFILE
    (extras,) = re.findall(r"'\.\[([^\]]+)\]'", DOCKERFILE)
    assert set(extras.split(",")) <= set(PROJECT["project"]["optional-dependencies"])
    assert {"server", "s3", "onnx"} <= set(extras.split(","))
    assert DOCKERFILE.index("USER felix") < DOCKERFILE.index("CMD")  # not as root
