"""Settings come from the environment, and wrong ones are refused by name."""

from __future__ import annotations

import dataclasses
import pathlib

import pytest

from server import errors, settings


def test_every_variable_changes_its_setting() -> None:
    for field in dataclasses.fields(settings.Settings):
        kinds = {"int": "7", "float": "7.5", "bool": "true"}
        text = kinds.get(str(field.type), "/x")
        name = f"FELIX_{field.name.upper()}"
        found = settings.Settings.from_environment({name: text})
        assert getattr(found, field.name) != getattr(settings.Settings(), field.name)
    assert settings.Settings.from_environment({}) == settings.Settings()


@pytest.mark.parametrize(
    ("name", "text"),
    [("FELIX_PORT", "http"), ("FELIX_LEASE_S", "-1"), ("FELIX_LEASE_S", "nan"),
     ("FELIX_LOG_JSON", "maybe"), ("FELIX_MAX_TRIALS", "0")],
)  # fmt: skip
def test_wrong_values_are_named(name: str, text: str) -> None:
    with pytest.raises(errors.SettingsError, match=name):
        settings.Settings.from_environment({name: text})


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ("postgresql://u:p@h/d", "postgresql+psycopg://u:p@h/d"),
        ("postgres://h/d", "postgresql+psycopg://h/d"),
        ("sqlite:////tmp/x.db", "sqlite:////tmp/x.db"),
    ],
)
def test_urls_name_the_driver(given: str, wanted: str) -> None:
    assert settings.Settings(database_url=given).database == wanted


def test_defaults_lie_in_the_data_folder(tmp_path: pathlib.Path) -> None:
    chosen = settings.Settings(data_dir=tmp_path / "a b")
    assert chosen.database == f"sqlite:///{tmp_path}/a b/felix.db"
    assert chosen.blobs == (tmp_path / "a b" / "blobs").as_uri()
    assert chosen.address == "http://127.0.0.1:8000"
