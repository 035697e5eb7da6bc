"""Cubins on disk, so that a network or a program that was built before is not compiled again.

One file a source under `$FELIX_CACHE_DIR` or `~/.cache/felix`, in `cubins`, named by a digest of
the source, the architecture, the options and NVRTC's version. It begins with the digest of the
rest; a damaged one is made anew. Beyond `MOST_BYTES` those unused for longest are deleted.
Candidates of a search are not kept: no second one has their source.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import pathlib

from felix.files import cache_folder, write_atomically
from felix.measure.cuda.building import nvrtc
from felix.measure.cuda.building import source as cuda_source

#: Of all files.
MOST_BYTES = 512 << 20
_DIGEST_BYTES = hashlib.sha256().digest_size


def folder() -> pathlib.Path:
    """Where the files are."""
    return cache_folder() / "cubins"


def compiled(source: cuda_source.Source, arch: str) -> bytes:
    """The cubin of a source for "sm_90" or the like, known or compiled now.

    A folder that cannot be read or written only means that it is compiled.

    Raises:
        CompileError: NVRTC refuses the source.
        MeasureError: there is no NVRTC here, or headers are needed and there are none.
    """
    path = _path(source, arch)
    known = _read(path)
    if known is not None:
        return known
    cubin = nvrtc.compile_cubin(source.text, arch, headers=source.headers)
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        digest = hashlib.sha256(cubin).digest()
        write_atomically(path, digest + cubin, durable=False, mode=0o600)
        _prune(path.parent)
    return cubin


def _path(source: cuda_source.Source, arch: str) -> pathlib.Path:
    key = repr((nvrtc.version(), arch, nvrtc.FAST, source.headers, source.text))
    return folder() / f"{hashlib.sha256(key.encode()).hexdigest()[:40]}.bin"


def _read(path: pathlib.Path) -> bytes | None:
    try:
        data = path.read_bytes()
        os.utime(path)
    except OSError:
        return None
    cubin = data[_DIGEST_BYTES:]
    return cubin if hashlib.sha256(cubin).digest() == data[:_DIGEST_BYTES] else None


def _prune(files: pathlib.Path) -> None:
    """Delete those unused for longest, until all are `MOST_BYTES` or less."""
    known = [(found.stat(), found) for found in files.glob("*.bin")]
    by_use = sorted(known, key=lambda each: each[0].st_mtime)
    n_bytes = sum(stat.st_size for stat, _ in by_use)
    for stat, found in by_use:
        if n_bytes <= MOST_BYTES:
            return
        found.unlink(missing_ok=True)
        n_bytes -= stat.st_size
