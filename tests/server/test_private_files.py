"""No other user of the machine reads the service's data, whatever the umask is."""

from __future__ import annotations

import logging
import os
import pathlib
import stat
import subprocess
import sys
import textwrap

import pytest

from server import folders
from server.database import database
from server.store import blobs

#: Serves nothing, but does what `felix serve` does before: database, a row, a blob, the key.
START = """
    import os, pathlib, sys
    os.umask(0o022)
    from server import commands, settings
    from server.database import database
    from server.store import blobs, keys
    chosen = settings.Settings(data_dir=pathlib.Path(sys.argv[1]))
    commands.upgrade(chosen)
    commands._announce_key(chosen, commands.first_key(chosen))
    db = database.Database(chosen.database)
    with db.write() as tx:
        keys.create(tx, keys.NewKey(name="second"))
    content = pathlib.Path(sys.argv[2])
    content.write_bytes(b"x")
    blobs.open_store(chosen.blobs).put(content)
    os._exit(0)  # SQLite's -wal and -shm stay
"""


def open_to_others(folder: pathlib.Path) -> list[str]:
    """What in a folder, itself included, others than its user have a right to."""
    paths = [folder, *folder.rglob("*")]
    return [path.name for path in paths if stat.S_IMODE(path.stat().st_mode) & 0o077]


def start(folder: pathlib.Path) -> subprocess.CompletedProcess[str]:
    """Use the service's files in a process with the usual umask."""
    command = [sys.executable, "-c", textwrap.dedent(START), str(folder), f"{folder}-content"]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)


def test_new_files_are_their_users_alone(tmp_path: pathlib.Path) -> None:
    folder = tmp_path / "deep" / "data"
    start(folder)
    names = {path.name for path in folder.rglob("*")}
    assert {"felix.db", "felix.db-wal", "felix.db-shm", "admin-key", "blobs"} <= names
    assert open_to_others(folder) == []


def test_wider_files_are_tightened_with_a_log_line(tmp_path: pathlib.Path) -> None:
    folder = tmp_path / "data"
    start(folder)
    for path in (folder, *folder.iterdir()):
        path.chmod(0o755 if path.is_dir() else 0o644)
    log = start(folder).stderr
    assert open_to_others(folder) == []
    for name in ("data", "felix.db", "felix.db-wal", "felix.db-shm", "blobs", "admin-key"):
        assert f"{name} was open to other users" in log


def test_a_shared_folder_is_not_taken_from_the_others(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    tmp_path.chmod(0o1777)
    with caplog.at_level(logging.WARNING, "server"):
        folders.tighten(tmp_path)
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o1777
    assert "other users can read" in caplog.text


def test_the_folder_of_a_database_elsewhere_stays_as_it_is(tmp_path: pathlib.Path) -> None:
    tmp_path.chmod(0o755)
    database.Database(f"sqlite:///{tmp_path / 'own.db'}").close()
    assert open_to_others(tmp_path) == [tmp_path.name]


def test_a_blob_folder_is_tightened_when_it_is_opened(tmp_path: pathlib.Path) -> None:
    folder = tmp_path / "blobs"
    folder.mkdir()
    os.chmod(folder, 0o755)
    blobs.open_store(str(folder))
    assert open_to_others(folder) == []
