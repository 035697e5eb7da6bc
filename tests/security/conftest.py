"""The application in process, on SQLite alone: what is attacked here comes before the database."""

from __future__ import annotations

import pathlib

import pytest

from tests.server.api.conftest import parser, service, settings  # noqa: F401  (fixtures)
from tests.server.conftest import db, empty_file  # noqa: F401  (fixtures)


@pytest.fixture
def url(tmp_path: pathlib.Path) -> str:
    """URL of a database without rows."""
    return f"sqlite:///{tmp_path / 'felix.db'}"
