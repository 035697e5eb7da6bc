"""`/readyz` with disks that are full or cannot be written."""

from __future__ import annotations

import contextlib
import pathlib
import subprocess
import tempfile
from collections.abc import Iterator

import pytest

from felix import files
from server import folders
from tests.server.conftest import Service


@contextlib.contextmanager
def full(folder: pathlib.Path) -> Iterator[None]:
    """The folder's disk is full: a small tmpfs with a file in it, or `/dev/full` where files lie.

    Mounting needs rights; without them the writes go to a device that is always full.
    """
    folder.mkdir(exist_ok=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={2 * folders.LEAST_BYTES}", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True).returncode == 0:
        try:
            (folder / "filling").write_bytes(bytes(folders.LEAST_BYTES + folders.LEAST_BYTES // 2))
            yield
        finally:
            subprocess.run(["umount", str(folder)], check=True)
        return
    with always_full(folder):
        yield


@contextlib.contextmanager
def always_full(folder: pathlib.Path) -> Iterator[None]:
    """Writes of new files in the folder go to `/dev/full`."""
    temporary = files.temporary

    @contextlib.contextmanager
    def to_full_device(at: pathlib.Path, *, mode: int = files.MODE) -> Iterator[object]:
        if at != folder:
            with temporary(at, mode=mode) as made:
                yield made
            return
        with open("/dev/full", "wb") as file:
            yield file, at / "file"

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "temporary", to_full_device)
        yield


@pytest.mark.parametrize("way", [full, always_full])
def test_a_full_disk_of_blobs_is_not_ready(service: Service, way: object) -> None:
    folder = service.settings.data_dir / "blobs"
    with way(folder):  # type: ignore[operator]
        response = service.client.get("/readyz")
        assert response.status_code == 503 and response.headers["Retry-After"]
        problem = response.json()
        assert problem["type"] == "urn:felix:problem:disk-unusable"
        assert problem["detail"] == "the disk of the blob store is full"
        assert service.client.get("/healthz").status_code == 200
    assert service.client.get("/readyz").status_code == 200
    assert [path for path in folder.rglob("*") if path.name.startswith(".part")] == []


def test_a_full_disk_of_scratch_files_is_not_ready(
    service: Service, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "scratch"))
    with full(tmp_path / "scratch"):
        response = service.client.get("/readyz")
    assert response.status_code == 503 and "scratch files is full" in response.json()["detail"]


def test_a_folder_that_is_none_is_not_ready(service: Service) -> None:
    folder = service.settings.data_dir / "blobs"
    folder.write_bytes(b"")
    response = service.client.get("/readyz")
    assert response.status_code == 503
    assert "the disk of the blob store cannot be written" in response.json()["detail"]
    assert str(folder) not in response.text
