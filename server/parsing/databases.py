"""MetaSchedule databases as text: unpacked from zips under limits, and several merged into one.

A database is two files of JSON lines. A line of workloads is a program; a line of records is
`[number of its workload, record]`. Nothing here reads programs or traces: the limited child does.
"""

from __future__ import annotations

import dataclasses
import io
import json
import zipfile
import zlib
from collections.abc import Iterable
from typing import IO, Any

from server import errors

WORKLOADS, RECORDS = "database_workload.json", "database_tuning_record.json"
#: What an export says about jobs that it leaves out.
NOTE = "left_out.txt"

#: Bytes of one database's text.
MAX_BYTES = 64 << 20


@dataclasses.dataclass(frozen=True, slots=True)
class Database:
    """The text of both files."""

    workloads: str
    records: str


def unpack(file: IO[bytes]) -> list[Database]:
    """The databases in a zip, by folder: pairs of the two files.

    Raises:
        InvalidRequest: it is no zip, has no database, or its text is longer than the limit.
    """
    databases = unpack_any(file)
    if not databases:
        raise errors.InvalidRequest(
            f"the zip needs the files {WORKLOADS} and {RECORDS} of a MetaSchedule database"
        )
    return databases


def unpack_any(file: IO[bytes]) -> list[Database]:
    """As `unpack`, of a zip that need not have any: generated kernels have no trace to store.

    Raises:
        InvalidRequest: it is no zip, or the text is longer than the limit.
    """
    try:
        with zipfile.ZipFile(file) as archive:
            names = set(archive.namelist())
            folders = sorted(name.removesuffix(RECORDS) for name in names if _is_records(name))
            pairs = [(folder + WORKLOADS, folder + RECORDS) for folder in folders]
            complete = [pair for pair in pairs if pair[0] in names]
            left, databases = MAX_BYTES, []
            for pair in complete:
                texts = []
                for name in pair:
                    texts.append(_read(archive, name, left))
                    left -= len(texts[-1])
                databases.append(Database(*texts))
            return databases
    except (
        zipfile.BadZipFile,
        zlib.error,
        UnicodeDecodeError,
        NotImplementedError,
        EOFError,
        RuntimeError,
    ) as error:
        raise errors.InvalidRequest(
            "the file is no zip of a MetaSchedule database, or it is damaged"
        ) from error


def merge(databases: Iterable[Database]) -> Database:
    """All records as one database; equal programs are one workload.

    Raises:
        InvalidRequest: a line is malformed.
    """
    numbers: dict[str, int] = {}
    lines: dict[str, None] = {}
    for database in databases:
        programs = [line for line in database.workloads.splitlines() if line.strip()]
        for program in programs:
            numbers.setdefault(program, len(numbers))
        for line in filter(str.strip, database.records.splitlines()):
            number, record = _parse(line, len(programs))
            merged = [numbers[programs[number]], record]
            lines[json.dumps(merged, separators=(",", ":"))] = None
    return Database(_text(numbers), _text(lines))


def pack(database: Database, note: str = "") -> bytes:
    """A zip of the two files, and of a note in words, if there is one.

    Files have no time stamp: equal contents make equal zips.
    """
    out = io.BytesIO()
    texts = [(WORKLOADS, database.workloads), (RECORDS, database.records)]
    if note:
        texts.append((NOTE, note))
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in texts:
            archive.writestr(zipfile.ZipInfo(name), text, zipfile.ZIP_DEFLATED)
    return out.getvalue()


def _parse(line: str, n_programs: int) -> tuple[int, Any]:
    """The number of a record's workload, and the record."""
    try:
        number, record = json.loads(line)
    except (ValueError, TypeError, RecursionError) as error:
        raise errors.InvalidRequest("a line of the database is malformed") from error
    if type(number) is not int or not 0 <= number < n_programs:
        raise errors.InvalidRequest("a line of the database is malformed: it has no workload")
    return number, record


def _is_records(name: str) -> bool:
    return name == RECORDS or name.endswith(f"/{RECORDS}")


def _read(archive: zipfile.ZipFile, name: str, limit_bytes: int) -> str:
    """A file's text, whatever size its header claims."""
    with archive.open(name) as file:
        content = file.read(limit_bytes + 1)
    if len(content) > limit_bytes:
        raise errors.InvalidRequest(f"the database's text is longer than {MAX_BYTES} bytes")
    return content.decode()


def _text(lines: Iterable[str]) -> str:
    return "".join(f"{line}\n" for line in lines)
