"""Files appear whole or not at all, and leave nothing behind."""

from __future__ import annotations

import os
import pathlib

import pytest

from felix import files


@pytest.mark.parametrize("durable", [True, False])
@pytest.mark.parametrize("data", ["größer\n", b"\x00\xff"])
def test_content_is_replaced(tmp_path: pathlib.Path, data: str | bytes, durable: bool) -> None:
    path = tmp_path / "file"
    path.write_text("earlier")
    files.write_atomically(path, data, durable=durable)
    assert path.read_bytes() == (data if isinstance(data, bytes) else data.encode())
    assert list(tmp_path.iterdir()) == [path]


def test_a_failed_block_leaves_the_file_as_it_was(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "file"
    path.write_text("earlier")
    with pytest.raises(ValueError, match="for the test"), files.replacing(path) as file:
        file.write(b"half")
        raise ValueError("for the test")
    assert path.read_text() == "earlier" and list(tmp_path.iterdir()) == [path]


def test_mode_follows_the_umask_and_the_caller(tmp_path: pathlib.Path) -> None:
    umask = os.umask(0o027)
    try:
        files.write_atomically(tmp_path / "shared", "")
        files.write_atomically(tmp_path / "private", "", mode=0o600)
    finally:
        os.umask(umask)
    assert (tmp_path / "shared").stat().st_mode & 0o777 == 0o640
    assert (tmp_path / "private").stat().st_mode & 0o777 == 0o600


def test_a_temporary_file_vanishes_unless_moved(tmp_path: pathlib.Path) -> None:
    with files.temporary(tmp_path) as (file, part):
        file.write(b"content")
        assert part.exists()
    assert not list(tmp_path.iterdir())
    with files.temporary(tmp_path) as (file, part):
        part.replace(tmp_path / "place")
    assert list(tmp_path.iterdir()) == [tmp_path / "place"]


def test_a_missing_folder_is_an_os_error(tmp_path: pathlib.Path) -> None:
    with pytest.raises(FileNotFoundError):
        files.write_atomically(tmp_path / "missing" / "file", "")
