"""Settings come from the environment, and wrong ones are refused by name."""

from __future__ import annotations

import pathlib

import pydantic
import pytest

from felix.processes import policy
from server import errors, settings


def test_every_variable_changes_its_setting() -> None:
    texts = {int: "7", float: "7.5", bool: "true", policy.ConfineGpu: "off"}
    for name, field in settings.Settings.model_fields.items():
        other = "7" if "int" in str(field.annotation) else "/x"  # int | None
        text = {"trusted_proxies": "10.0.0.0/8", "cluster": "head:6379"}.get(
            name, texts.get(field.annotation, other)
        )
        environment = {f"FELIX_{name.upper()}": text}
        changed = settings.Settings.from_environment(environment)
        assert getattr(changed, name) != getattr(settings.Settings(), name)
    assert settings.Settings.from_environment({}) == settings.Settings()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("FELIX_PORT", "http"),
        ("FELIX_LEASE_S", "-1"),
        ("FELIX_LEASE_S", "nan"),
        ("FELIX_LOG_JSON", "maybe"),
        ("FELIX_MAX_TRIALS", "0"),
        ("FELIX_CONFINE_GPU", "1"),
        ("FELIX_TRUSTED_PROXIES", "everybody"),
        ("FELIX_TRUSTED_PROXIES", "10.0.0.1/8"),
        ("FELIX_CLUSTER", "head"),
        ("FELIX_CLUSTER", "http://head:6379"),
    ],
)
def test_wrong_values_are_named(name: str, text: str) -> None:
    with pytest.raises(errors.SettingsError, match=f"{name} is '{text}'"):
        settings.Settings.from_environment({name: text})


def test_an_empty_variable_counts_as_absent() -> None:
    assert settings.Settings.from_environment({"FELIX_PORT": ""}) == settings.Settings()


def test_only_from_environment_reads_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    default = settings.Settings().port
    monkeypatch.setenv("FELIX_PORT", "99")
    assert settings.Settings().port == default
    assert settings.Settings.from_environment().port == 99


def test_the_lifetime_of_cached_responses_has_an_earlier_name() -> None:
    earlier, now = {"FELIX_LOOK_S": "3"}, {"FELIX_CACHE_TTL_S": "4"}
    assert settings.Settings.from_environment(earlier).cache_ttl_s == 3.0
    assert settings.Settings.from_environment(earlier | now).cache_ttl_s == 4.0


def test_settings_do_not_change() -> None:
    with pytest.raises(pydantic.ValidationError, match="frozen"):
        settings.Settings().port = 1


@pytest.mark.parametrize(
    ("url", "with_driver"),
    [
        ("postgresql://u:p@h/d", "postgresql+psycopg://u:p@h/d"),
        ("postgres://h/d", "postgresql+psycopg://h/d"),
        ("sqlite:////tmp/x.db", "sqlite:////tmp/x.db"),
    ],
)
def test_urls_name_the_driver(url: str, with_driver: str) -> None:
    assert settings.Settings(database_url=url).database == with_driver


def test_defaults_lie_in_the_data_folder(tmp_path: pathlib.Path) -> None:
    chosen = settings.Settings(data_dir=tmp_path / "a b")
    assert chosen.database == f"sqlite:///{tmp_path}/a b/felix.db"
    assert chosen.blobs == (tmp_path / "a b" / "blobs").as_uri()
    assert chosen.address == "http://127.0.0.1:8000"
