"""Cubins that are kept: found again, made anew when damaged, and deleted when there are many."""

from __future__ import annotations

import os
import pathlib

import pytest

from felix.measure.cuda.building import cubin_cache, nvrtc
from felix.measure.cuda.building import source as cuda_source

SOURCE = cuda_source.Source('extern "C" __global__ void f(float* x) { *x = 1.0f; }', headers=False)


@pytest.fixture(autouse=True)
def compiled(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> list[str]:
    """What was compiled; a cubin is its source and architecture here."""
    texts: list[str] = []

    def compile_cubin(text: str, arch: str, headers: bool) -> bytes:
        texts.append(text)
        return f"{text} {arch} {headers}".encode()

    monkeypatch.setattr(nvrtc, "compile_cubin", compile_cubin)
    monkeypatch.setattr(nvrtc, "version", lambda: (13, 0))
    monkeypatch.setenv("FELIX_CACHE_DIR", str(tmp_path))
    return texts


def _of(text: str) -> cuda_source.Source:
    return cuda_source.Source(text, headers=False)


def test_a_source_is_compiled_once(compiled: list[str]) -> None:
    first = cubin_cache.compiled(SOURCE, "sm_90")
    assert cubin_cache.compiled(SOURCE, "sm_90") == first and len(compiled) == 1
    (path,) = cubin_cache.folder().glob("*.bin")
    assert path.stat().st_mode & 0o777 == 0o600


def test_another_architecture_version_or_header_is_another_cubin(
    compiled: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cubin_cache.compiled(SOURCE, "sm_90")
    assert cubin_cache.compiled(SOURCE, "sm_80") != cubin_cache.compiled(SOURCE, "sm_90")
    cubin_cache.compiled(cuda_source.Source(SOURCE.text, headers=True), "sm_90")
    assert len(compiled) == 3
    monkeypatch.setattr(nvrtc, "version", lambda: (12, 8))
    cubin_cache.compiled(SOURCE, "sm_90")
    assert len(compiled) == 4


@pytest.mark.parametrize("damage", [b"", b"short", None])
def test_a_damaged_file_is_made_anew(compiled: list[str], damage: bytes | None) -> None:
    first = cubin_cache.compiled(SOURCE, "sm_90")
    (path,) = cubin_cache.folder().glob("*.bin")
    path.write_bytes(path.read_bytes()[:-1] if damage is None else damage)
    assert cubin_cache.compiled(SOURCE, "sm_90") == first and len(compiled) == 2
    assert cubin_cache.compiled(SOURCE, "sm_90") == first and len(compiled) == 2


def test_those_unused_for_longest_are_deleted(
    compiled: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, name in enumerate("abc"):
        known = set(cubin_cache.folder().glob("*.bin"))
        cubin_cache.compiled(_of(name), "sm_90")
        (path,) = set(cubin_cache.folder().glob("*.bin")) - known
        os.utime(path, (number, number))
    cubin_cache.compiled(_of("a"), "sm_90")  # used now
    size = path.stat().st_size
    monkeypatch.setattr(cubin_cache, "MOST_BYTES", 3 * size)
    cubin_cache.compiled(_of("d"), "sm_90")
    assert compiled == ["a", "b", "c", "d"]
    for name in "acd":
        cubin_cache.compiled(_of(name), "sm_90")
    assert len(compiled) == 4
    cubin_cache.compiled(_of("b"), "sm_90")
    assert len(compiled) == 5


def test_a_folder_that_cannot_be_written_only_costs_time(
    compiled: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("FELIX_CACHE_DIR", str(tmp_path / "file"))
    for count in (1, 2):
        assert cubin_cache.compiled(SOURCE, "sm_90") and len(compiled) == count
