"""Measured schedules on disk: append-only Parquet parts, and two side tables.

A data set is a folder:

    workloads/part-000000.parquet   one row per workload: key, name, operator + JSON parameters
                                    or TIR JSON, FLOPs, minimal bytes
    schedules/part-000000.parquet   one row per measured schedule: workload key, target (JSON),
                                    sketch index and key, decisions, latencies in us, their
                                    median or an error class, device, TVM version, time (UTC),
                                    whether copies were asynchronous

A part appears whole or not at all (written aside, then linked under a free number), so a killed
collector loses at most the records of its last unwritten part, and several may write at once.
A part that cannot be read is left out and named in `Dataset.torn`. Features are not stored: they
follow from the decisions.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import os
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
from pyarrow import parquet

from felix import errors

#: The column that parts of before asynchronous copies do not have.
_ASYNC = "async_copies"
SCHEDULES = pa.schema(
    [
        pa.field("workload", pa.string(), nullable=False),
        pa.field("target", pa.string(), nullable=False),
        pa.field("sketch", pa.int16(), nullable=False),
        pa.field("sketch_key", pa.string(), nullable=False),
        pa.field("decisions", pa.list_(pa.int32()), nullable=False),
        pa.field("latencies_us", pa.list_(pa.float64()), nullable=False),
        pa.field("latency_us", pa.float64()),
        pa.field("error", pa.string()),
        pa.field("device", pa.string(), nullable=False),
        pa.field("tvm", pa.string(), nullable=False),
        pa.field("source", pa.string(), nullable=False),
        pa.field("measured_at", pa.timestamp("ms", tz="UTC"), nullable=False),
        pa.field(_ASYNC, pa.bool_(), nullable=False),
    ]
)
WORKLOADS = pa.schema(
    [
        pa.field("key", pa.string(), nullable=False),
        pa.field("name", pa.string(), nullable=False),
        pa.field("operator", pa.string(), nullable=False),
        pa.field("params", pa.string()),
        pa.field("tir", pa.string()),
        pa.field("flops", pa.int64(), nullable=False),
        pa.field("min_bytes", pa.int64(), nullable=False),
    ]
)


@dataclass(frozen=True, slots=True)
class Workload:
    """A computation: `felix.workloads.<operator>(**params)`, or TIR JSON where there is none.

    Attributes:
        key: stable hash of operator and parameters (or of the TIR).
        operator: group by which splits are stratified ("gemm", "conv2d", "tir", ...).
        params: JSON object of the operator's arguments, or None.
        tir: TVM JSON of an IRModule with "main", or None.
    """

    key: str
    name: str
    operator: str
    params: str | None
    tir: str | None
    flops: int
    min_bytes: int


@dataclass(frozen=True, slots=True)
class Record:
    """One measured schedule: a latency, or the class of the error instead.

    Attributes:
        target: the TVM target as JSON.
        sketch: index among the task's sketches; `sketch_key` tells whether it still means that.
        latencies_us: the repeats, empty on error.
        error: error class of the measurement ("build", "timeout", ...), None when it ran.
        source: how the schedule was chosen: "random", "model", "neighbour" or "descent".
        async_copies: whether the program was built with asynchronous copies. Parts without this
            column hold programs that were not.
    """

    workload: str
    target: str
    sketch: int
    sketch_key: str
    decisions: tuple[int, ...]
    latencies_us: tuple[float, ...]
    error: str | None
    device: str
    tvm: str
    source: str
    measured_at: datetime.datetime
    async_copies: bool = False

    def __post_init__(self) -> None:
        if (self.error is None) != bool(self.latencies_us):
            raise errors.RecordError("a record has latencies or an error, one of the two")
        if self.measured_at.tzinfo is None:
            raise errors.RecordError("a record's time needs a time zone")

    @property
    def latency_us(self) -> float | None:
        """Median of the repeats."""
        return statistics.median(self.latencies_us) if self.latencies_us else None

    @property
    def identity(self) -> tuple[str, str, str, tuple[int, ...], str]:
        """Two records of the same identity measured the same thing."""
        return (self.workload, self.target, self.sketch_key, self.decisions, self.device)


@dataclass(frozen=True, slots=True)
class Dataset:
    """What a folder holds: workloads by key, records without repeats, unreadable parts."""

    workloads: dict[str, Workload]
    records: tuple[Record, ...]
    torn: tuple[str, ...] = ()

    @property
    def digest(self) -> str:
        """Hash of the measurements; the same however they are spread over parts."""
        lines = sorted(
            json.dumps(
                [
                    r.workload,
                    r.target,
                    r.sketch_key,
                    r.decisions,
                    r.latencies_us,
                    r.error,
                    *(["async"] if r.async_copies else []),
                ]
            )
            for r in self.records
        )
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def workload_key(operator: str, params: str | None, tir: str | None) -> str:
    """The stable key of a workload."""
    return hashlib.sha256(json.dumps([operator, params, tir]).encode()).hexdigest()[:16]


class Writer:
    """Appends to a data set; every flush makes one new part.

    Several writers, in one or several processes, may append to one folder.
    """

    def __init__(self, folder: str | Path, part_rows: int = 64) -> None:
        self.folder = Path(folder)
        self.part_rows = part_rows
        self._records: list[Record] = []
        try:
            for name in ("workloads", "schedules"):
                (self.folder / name).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise errors.OutputError(f"cannot write {folder}: {error.strerror}") from error

    def add_workloads(self, workloads: Iterable[Workload]) -> None:
        """Write the workloads that the folder does not have yet."""
        known, _ = _read_parts(self.folder / "workloads", WORKLOADS)
        keys = {row["key"] for row in known}
        rows = [_fields(w, WORKLOADS.names) for w in workloads if w.key not in keys]
        if rows:
            _write_part(self.folder / "workloads", rows, WORKLOADS)

    def add(self, record: Record) -> None:
        """Take one record, to be written with the next full part, `flush` or the end."""
        self._records.append(record)
        if len(self._records) >= self.part_rows:
            self.flush()

    def flush(self) -> None:
        """Write the records that are not written yet, as one part."""
        if self._records:
            rows = [_fields(record, SCHEDULES.names) for record in self._records]
            _write_part(self.folder / "schedules", rows, SCHEDULES)
            self._records.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.flush()


def read(folders: str | Path | Sequence[str | Path]) -> Dataset:
    """Everything in one or several data set folders; first record of an identity wins.

    Raises:
        RecordError: a folder is no data set, or a record's workload is unknown.
    """
    if isinstance(folders, str | Path):
        folders = [folders]
    workloads: dict[str, Workload] = {}
    records: dict[Any, Record] = {}
    torn: list[str] = []
    for folder in map(Path, folders):
        if not (folder / "schedules").is_dir():
            raise errors.RecordError(f"{folder} is not a data set: it has no `schedules` folder")
        known, torn_here = _read_parts(folder / "workloads", WORKLOADS)
        torn += torn_here
        workloads |= {row["key"]: Workload(**row) for row in known}
        rows, torn_here = _read_parts(folder / "schedules", SCHEDULES)
        torn += torn_here
        for row in rows:
            record = _record(row)
            records.setdefault(record.identity, record)
    orphans = {r.workload for r in records.values()} - set(workloads)
    if orphans:
        if not torn:
            raise errors.RecordError(f"{len(orphans)} workloads of the records are not described")
        records = {k: r for k, r in records.items() if r.workload not in orphans}
    return Dataset(workloads, tuple(records.values()), tuple(torn))


def compact(source: str | Path | Sequence[str | Path], folder: str | Path) -> Dataset:
    """Copy one or several data sets to the new folder `folder` as one part per table."""
    dataset = read(source)
    if Path(folder).exists() and any(Path(folder).iterdir()):
        raise errors.OutputError(f"{folder} is not empty")
    with Writer(folder, part_rows=len(dataset.records) + 1) as writer:
        used = {record.workload for record in dataset.records}
        writer.add_workloads(w for w in dataset.workloads.values() if w.key in used)
        for record in sorted(dataset.records, key=lambda r: (r.workload, r.measured_at)):
            writer.add(record)
    return dataset


def _fields(value: Workload | Record, names: Sequence[str]) -> dict[str, Any]:
    return {name: getattr(value, name) for name in names}


def _record(row: dict[str, Any]) -> Record:
    row = {name: value for name, value in row.items() if name != "latency_us"}
    row["decisions"] = tuple(row["decisions"])
    row["latencies_us"] = tuple(row["latencies_us"])
    return Record(**row)


def _write_part(folder: Path, rows: list[dict[str, Any]], schema: pa.Schema) -> Path:
    """Write a part under the first free number; a reader never sees it half written."""
    temporary = folder / f".writing-{os.getpid()}-{os.urandom(4).hex()}"
    try:
        table = pa.Table.from_pylist(rows, schema=schema)
        parquet.write_table(table, temporary, compression="zstd")
        with open(temporary, "rb") as file:
            os.fsync(file.fileno())
        number = len(list(folder.glob("part-*.parquet")))
        while True:
            part = folder / f"part-{number:06d}.parquet"
            try:
                os.link(temporary, part)
                return part
            except FileExistsError:
                number += 1
    except OSError as error:
        raise errors.OutputError(f"cannot write {folder}: {error.strerror or error}") from error
    finally:
        temporary.unlink(missing_ok=True)


def _read_parts(folder: Path, schema: pa.Schema) -> tuple[list[dict[str, Any]], list[str]]:
    rows: list[dict[str, Any]] = []
    torn = []
    for part in sorted(folder.glob("part-*.parquet")):
        try:
            table = parquet.read_table(part)
            if _ASYNC in schema.names and _ASYNC not in table.column_names:
                table = table.append_column(_ASYNC, pa.array([False] * table.num_rows))
            rows += table.select(schema.names).cast(schema).to_pylist()
        except (pa.ArrowException, ValueError, OSError):
            torn.append(str(part))
    return rows, torn
