"""The zip of an answered job: the earlier job's, with what is said of the job made its own.

The contents of a bundle do not depend on who asked for it, but for two things: the folder that all
its files lie in, and the entry `job` of its manifest. All other files are copied as they are
stored, compressed, so this takes as long as copying the file.
"""

from __future__ import annotations

import json
import pathlib
import struct
import tempfile
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from typing import IO, Any

from sqlalchemy import orm

from server import errors, logs
from server.store import artifacts, blobs, rows

_log = logs.of(__name__)

_MANIFEST = "manifest.json"

#: Bytes of a manifest at most.
MAX_MANIFEST_BYTES = 64 << 20

#: What a bundle that is gone, damaged or none at all raises.
_DAMAGE = (
    errors.NotFound,
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    ValueError,
    KeyError,
    EOFError,
    RuntimeError,
)

#: Fields of a zip that this module writes, little-endian; APPNOTE.TXT has them.
_LOCAL = struct.Struct("<4s5H3L2H")
_CENTRAL = struct.Struct("<4s6H3L5H2L")
_END = struct.Struct("<4s4H2LH")
_UTF8 = 0x800
_UNIX = 3 << 8
_VERSION = 20


def make(
    tx: orm.Session, store: blobs.BlobStore, job: rows.Job, source: rows.Artifact
) -> artifacts.NewArtifact | None:
    """The bundle of a job that an earlier one answers, stored; None if that one's is unusable.

    Args:
        tx: writes the artifact's row, too.
        job: as it will be when it has ended.
        source: the earlier job's bundle, or its network.

    Raises:
        BlobError: the store cannot be read or written.
    """
    name = f"felix-job-{job.id}" + ("-network" if source.kind == "network" else "")
    with tempfile.TemporaryDirectory(prefix="felix-bundle-") as folder:
        original, copy = pathlib.Path(folder, "original"), pathlib.Path(folder, "copy")
        try:
            with open(original, "wb") as file:
                file.writelines(store.read(source.sha256))
            rewrite(original, copy, name, artifacts.description(job))
        except _DAMAGE as error:
            _log.warning(
                "the artifact of job %d is damaged: %s",
                source.job_id,
                error,
                action="reuse",
                job_id=source.job_id,
            )
            return None
        stored = store.put(copy)
        artifacts.keep_content(tx, store, stored.sha256, copy)
    return artifacts.NewArtifact(
        name=f"{name}.zip",
        kind=source.kind,
        media_type=source.media_type,
        sha256=stored.sha256,
        size_bytes=stored.size_bytes,
    )


def rewrite(
    original: pathlib.Path, copy: pathlib.Path, folder: str, job: Mapping[str, Any]
) -> None:
    """Copy a bundle into another folder, with another entry `job` in its manifest.

    Raises:
        what `_DAMAGE` has: it is no bundle, is damaged, or has more than 4 GiB.
    """
    with zipfile.ZipFile(original) as archive, open(original, "rb") as raw, open(copy, "wb") as to:
        entries = archive.infolist()
        top = entries[0].filename.partition("/")[0] if entries else ""
        manifest = archive.getinfo(f"{top}/{_MANIFEST}")
        if manifest.file_size > MAX_MANIFEST_BYTES:
            raise ValueError("its manifest is too long")
        content = json.loads(archive.read(manifest))
        if not isinstance(content, dict):
            raise ValueError("its manifest is no object")
        content["job"] = dict(job)
        central = []
        for entry in entries:
            name = f"{folder}/{entry.filename.removeprefix(f'{top}/')}".encode()
            stored: Iterable[bytes] = _stored(raw, entry)
            if entry is manifest:
                text = (json.dumps(content, indent=2) + "\n").encode()
                entry.compress_type, entry.CRC = zipfile.ZIP_STORED, zlib.crc32(text)
                entry.compress_size = entry.file_size = len(text)
                stored = [text]
            central.append(_write(to, name, entry, stored))
        begin = to.tell()
        to.writelines(central)
        end = to.tell()
        n = len(central)
        to.write(_END.pack(b"PK\5\6", 0, 0, n, n, end - begin, begin, 0))


def _write(to: IO[bytes], name: bytes, entry: zipfile.ZipInfo, stored: Iterable[bytes]) -> bytes:
    """Write a file with this content, as it is stored; its record for the directory."""
    place = to.tell()
    date = 33  # 1980-01-01, as all our zips have: equal contents make equal zips
    sizes = (entry.CRC, entry.compress_size, entry.file_size)
    common = (_VERSION, _UTF8, entry.compress_type, 0, date, *sizes, len(name), 0)
    to.write(_LOCAL.pack(b"PK\3\4", *common) + name)
    to.writelines(stored)
    about = (0, 0, 0, entry.external_attr, place)
    return _CENTRAL.pack(b"PK\1\2", _UNIX | _VERSION, *common, *about) + name


def _stored(raw: IO[bytes], entry: zipfile.ZipInfo) -> Iterator[bytes]:
    """The content of a file as it is stored, in chunks."""
    raw.seek(entry.header_offset)
    head = _LOCAL.unpack(raw.read(_LOCAL.size))
    raw.seek(head[-2] + head[-1], 1)
    left = entry.compress_size
    while left:
        chunk = raw.read(min(left, blobs.CHUNK_BYTES))
        if not chunk:
            raise ValueError("a file of it is shorter than it says")
        yield chunk
        left -= len(chunk)
