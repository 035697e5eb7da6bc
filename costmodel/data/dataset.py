"""Measured schedules on disk: append-only Parquet parts, and two side tables.

A data set is a folder:

    workloads/part-000000.parquet   one row per workload: key, name, operator + JSON parameters
                                    or TIR JSON, FLOPs, minimal bytes
    schedules/part-000000.parquet   one row per measured schedule: workload key, target (JSON),
                                    sketch index and key, decisions, latencies in us, their
                                    median or an error class, device, TVM version, time (UTC),
                                    whether copies were asynchronous; of a generated kernel its
                                    template, the features and their version

Parts (`parts`) are written whole: a killed collector loses at most the records of its last
unwritten part, and several may write at once. A part that cannot be read is left out and named in
`Dataset.torn`. Features of schedules of traces are not stored: they follow from the decisions.
Those of generated kernels are few numbers and are stored, so that a data set outlives a change of
the templates' code.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from costmodel.data import parts
from felix import errors
from felix.features.kind import FeatureKind


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
        source: how the schedule was chosen: "random" (once there is a model, the best predicted of
            a few random ones), "model", "neighbour" of the fastest so far, or "descent".
        async_copies: whether the program was built with asynchronous copies. Parts without this
            column hold programs that were not.
        template: name of the template of a generated kernel; None of a trace.
        features: of a generated kernel, its rows [R, F] one after the other; empty of a trace.
        features_version: `felix.templates.spec.VERSION` of these.
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
    template: str | None = None
    features: tuple[float, ...] = ()
    features_version: int | None = None

    def __post_init__(self) -> None:
        if (self.error is None) != bool(self.latencies_us):
            raise errors.RecordError("a record has latencies or an error, one of the two")
        if self.measured_at.tzinfo is None:
            raise errors.RecordError("a record's time needs a time zone")
        if (self.template is None) != (self.features_version is None):
            raise errors.RecordError("features and their version are stored of templates alone")

    @property
    def kind(self) -> FeatureKind:
        """Whose features it has."""
        return FeatureKind.TRACE if self.template is None else FeatureKind.TEMPLATE

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
        with errors.writing(folder):
            for name in ("workloads", "schedules"):
                (self.folder / name).mkdir(parents=True, exist_ok=True)

    def add_workloads(self, workloads: Iterable[Workload]) -> None:
        """Write the workloads that the folder does not have yet."""
        known, _ = parts.read(self.folder / "workloads", parts.WORKLOADS)
        keys = {row["key"] for row in known}
        rows = [_fields(w, parts.WORKLOADS.names) for w in workloads if w.key not in keys]
        if rows:
            parts.write(self.folder / "workloads", rows, parts.WORKLOADS)

    def add(self, record: Record) -> None:
        """Take one record, to be written with the next full part, `flush` or the end."""
        self._records.append(record)
        if len(self._records) >= self.part_rows:
            self.flush()

    def flush(self) -> None:
        """Write the records that are not written yet, as one part."""
        if self._records:
            rows = [_fields(record, parts.SCHEDULES.names) for record in self._records]
            parts.write(self.folder / "schedules", rows, parts.SCHEDULES)
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
        known, torn_here = parts.read(folder / "workloads", parts.WORKLOADS)
        torn += torn_here
        workloads |= {row["key"]: Workload(**row) for row in known}
        rows, torn_here = parts.read(folder / "schedules", parts.SCHEDULES)
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
    row["features"] = tuple(row["features"] or ())
    return Record(**row)
