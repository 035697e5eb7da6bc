"""Cubins that are kept: found again, made anew when damaged, and deleted when there are many."""

from __future__ import annotations

import os
import pathlib

import pytest

from felix.builder.cuda import cubins
from felix.runner.cuda import nvrtc

SOURCE = cubins.Source('extern "C" __global__ void f(float* x) { *x = 1.0f; }', headers=False)


@pytest.fixture(autouse=True)
def compiled(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> list[str]:
    """What was compiled; a cubin is its source and architecture here."""
    texts: list[str] = []

    def compile_cubin(text: str, arch: str, headers: bool) -> bytes:
        texts.append(text)
        return f"{text} {arch} {headers}".encode()

    monkeypatch.setattr(nvrtc, "compile_cubin", compile_cubin)
    monkeypatch.setattr(nvrtc, "build", lambda: "13.0.88")
    monkeypatch.setenv("FELIX_CACHE_DIR", str(tmp_path))
    return texts


def _of(text: str) -> cubins.Source:
    return cubins.Source(text, headers=False)


def test_a_source_is_compiled_once(compiled: list[str]) -> None:
    first = cubins.compiled(SOURCE, "sm_90")
    assert cubins.compiled(SOURCE, "sm_90") == first and len(compiled) == 1
    (path,) = cubins.folder().glob("*.bin")
    assert path.stat().st_mode & 0o777 == 0o600


def test_another_architecture_version_or_header_is_another_cubin(
    compiled: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cubins.compiled(SOURCE, "sm_90")
    assert cubins.compiled(SOURCE, "sm_80") != cubins.compiled(SOURCE, "sm_90")
    cubins.compiled(cubins.Source(SOURCE.text, headers=True), "sm_90")
    assert len(compiled) == 3
    monkeypatch.setattr(nvrtc, "build", lambda: "13.0.48")
    cubins.compiled(SOURCE, "sm_90")
    assert len(compiled) == 4


@pytest.mark.parametrize("damage", [b"", b"short", None])
def test_a_damaged_file_is_made_anew(compiled: list[str], damage: bytes | None) -> None:
    first = cubins.compiled(SOURCE, "sm_90")
    (path,) = cubins.folder().glob("*.bin")
    path.write_bytes(path.read_bytes()[:-1] if damage is None else damage)
    assert cubins.compiled(SOURCE, "sm_90") == first and len(compiled) == 2
    assert cubins.compiled(SOURCE, "sm_90") == first and len(compiled) == 2


def test_those_unused_for_longest_are_deleted(
    compiled: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, name in enumerate("abc"):
        known = set(cubins.folder().glob("*.bin"))
        cubins.compiled(_of(name), "sm_90")
        (path,) = set(cubins.folder().glob("*.bin")) - known
        os.utime(path, (number, number))
    cubins.compiled(_of("a"), "sm_90")  # used now
    size = path.stat().st_size
    monkeypatch.setattr(cubins, "MOST_BYTES", 3 * size)
    cubins.compiled(_of("d"), "sm_90")
    assert compiled == ["a", "b", "c", "d"]
    for name in "acd":
        cubins.compiled(_of(name), "sm_90")
    assert len(compiled) == 4
    cubins.compiled(_of("b"), "sm_90")
    assert len(compiled) == 5


def test_a_folder_that_cannot_be_written_only_costs_time(
    compiled: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("FELIX_CACHE_DIR", str(tmp_path / "file"))
    for count in (1, 2):
        assert cubins.compiled(SOURCE, "sm_90") and len(compiled) == count
