"""Tuning records: what was measured, on disk, and MetaSchedule databases in and out.

A record file is JSON Lines: one `Record` a line, in the order of measuring, each written with
one system call, so a killed process loses no record whose writing returned and leaves at most
one torn line at the end, which readers skip and the next writer cuts off. Latencies are in
microseconds, durations in seconds, `timestamp` is in seconds since 1970 (UTC).

A MetaSchedule database holds workloads and schedule traces in TVM's own format; stock TVM
applies the best one with `tvm.s_tir.meta_schedule.tir_integration.compile_tir`. It has no place
for a generated program (`felix.templates`), which no trace makes.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import os
import pathlib
import platform
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self, TypeAlias

from felix import errors, version
from felix.runner import protocol

if TYPE_CHECKING:
    import tvm

#: Version of the lines written here.
FORMAT = 1

#: Sketch index and decisions: what makes two candidates of a task the same.
Key: TypeAlias = tuple[int, tuple[int, ...]]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One measured candidate: whose it is, which decisions, what measuring gave and when.

    `predicted_us` is what the cost model predicted before measuring, None without a model;
    `round` counts rounds of the task from 0; `elapsed_s` is since the start of tuning. A `repeat`
    is another, longer measurement of a candidate at the end of a run; it is no trial. `variant`
    is the program of the task that the sketch schedules (`felix.tir.design_space.variants`), or
    the name of the template (`felix.templates`) whose parameters the decisions are.
    """

    task_key: str
    task_name: str
    sketch_index: int
    sketch_key: str
    decisions: tuple[int, ...]
    measurement: protocol.Measurement
    predicted_us: float | None
    round: int
    elapsed_s: float
    timestamp: float
    versions: Mapping[str, str]
    repeat: bool = False
    variant: str = "stock"

    @property
    def key(self) -> Key:
        """Which candidate of its task this is of."""
        return self.sketch_index, self.decisions

    def to_json(self) -> str:
        """One line of text, without its end."""
        fields = dataclasses.asdict(self)
        return json.dumps({"felix_record": FORMAT, **fields}, separators=(",", ":"))

    @classmethod
    def from_json(cls, line: str) -> Self:
        """Read one line of `to_json`.

        Raises:
            RecordError: the line is malformed or of another format version.
        """
        try:
            fields = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise errors.RecordError(f"not valid JSON: {error}") from error
        if not isinstance(fields, dict) or "felix_record" not in fields:
            raise errors.RecordError("not a Felix record")
        if fields.pop("felix_record") != FORMAT:
            raise errors.RecordError(f"a record of another version than {FORMAT}")
        try:
            return cls(**_typed(fields))
        except (TypeError, ValueError, KeyError, AttributeError) as error:
            raise errors.RecordError(f"a malformed record: {error}") from error


def versions() -> dict[str, str]:
    """Versions of what a latency depends on."""
    return {
        "felix": version.__version__,
        "python": platform.python_version(),
        "apache-tvm": importlib.metadata.version("apache-tvm"),
        "apache-tvm-ffi": importlib.metadata.version("apache-tvm-ffi"),
    }


def effective_measurements(every: Iterable[Record]) -> dict[Key, Record]:
    """The record that counts of each candidate of one task that ran and was checked.

    It is the last repeat of a candidate that was measured again (none if that failed), else its
    fastest measurement.
    """
    effective: dict[Key, Record] = {}
    for record in every:
        add_effective(effective, record)
    return effective


def add_effective(effective: dict[Key, Record], record: Record) -> None:
    """Let one more record of a task count in what `effective_measurements` made of the earlier."""
    latency_us = record.measurement.latency_us
    earlier = effective.get(record.key)
    if record.repeat:
        effective.pop(record.key, None)
    if latency_us is None or not record.measurement.checked:
        return
    if record.repeat or earlier is None:
        effective[record.key] = record
    elif not earlier.repeat and latency_us < (earlier.measurement.latency_us or 0.0):
        effective[record.key] = record


def fastest(effective: Mapping[Key, Record], is_remeasured: bool) -> Record | None:
    """The fastest candidate by its effective measurement.

    Once the best of a run were measured again (`is_remeasured`), the fastest of those: any other
    was not as fast, or is fast by luck.
    """
    repeats = [record for record in effective.values() if record.repeat] if is_remeasured else []
    ranked = repeats or list(effective.values())
    return min(ranked, key=lambda r: r.measurement.latency_us or 0.0, default=None)


class Writer:
    """Appends records to a file; each is on its way to disk when `append` returns.

    Raises:
        OutputError: the file cannot be written.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = pathlib.Path(path)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            flags = os.O_RDWR | os.O_CREAT | os.O_APPEND
            self._fd: int | None = os.open(self.path, flags, 0o644)
            _cut_torn_line(self._fd)
        except OSError as error:
            raise errors.OutputError(f"cannot write {self.path}: {error.strerror}") from error

    def append(self, record: Record) -> None:
        """Write one record as one line."""
        if self._fd is None:
            raise errors.OutputError(f"{self.path} is closed")
        line = (record.to_json() + "\n").encode()
        try:
            while line:  # one write, but for a full disk or a signal
                line = line[os.write(self._fd, line) :]
        except OSError as error:
            raise errors.OutputError(f"cannot write {self.path}: {error.strerror}") from error

    def close(self) -> None:
        """Close the file; may be called twice."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


def read(path: str | os.PathLike[str]) -> list[Record]:
    """All records of a file, in order; a torn last line is skipped.

    Raises:
        RecordError: the file cannot be read, or a complete line is malformed.
    """
    return list(iterate(path))


def iterate(path: str | os.PathLike[str]) -> Iterator[Record]:
    """`read`, one record at a time."""
    try:
        with open(path, "rb") as file:
            for number, line in enumerate(file, start=1):
                if not line.endswith(b"\n"):
                    return  # torn: the writer was killed here
                try:
                    yield Record.from_json(line.decode())
                except (errors.RecordError, UnicodeDecodeError) as error:
                    raise errors.RecordError(f"{path}, line {number}: {error}") from error
    except OSError as error:
        raise errors.RecordError(f"cannot read {path}: {error.strerror}") from error


@dataclasses.dataclass(frozen=True, slots=True)
class DatabaseEntry:
    """A schedule of a workload as MetaSchedule's database stores it."""

    mod: tvm.IRModule
    trace: Any
    latencies_us: tuple[float, ...]
    target: Any


def export_database(folder: str | os.PathLike[str], entries: Iterable[DatabaseEntry]) -> None:
    """Write `database_workload.json` and `database_tuning_record.json` into `folder`.

    Entries are added to a database that is there already.

    Raises:
        OutputError: the folder cannot be written.
    """
    from tvm.s_tir import meta_schedule as ms

    folder = pathlib.Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name in ("database_workload.json", "database_tuning_record.json"):
            with open(folder / name, "ab"):
                pass  # TVM would report an unwritable file as an internal error
    except OSError as error:
        raise errors.OutputError(f"cannot write {folder}: {error.strerror}") from error
    database = ms.database.JSONDatabase(work_dir=str(folder))
    for entry in entries:
        mod = ms.tune_context._normalize_mod(entry.mod)
        database.commit_tuning_record(
            ms.database.TuningRecord(
                trace=entry.trace,
                workload=database.commit_workload(mod),
                run_secs=[latency * 1e-6 for latency in entry.latencies_us],
                target=entry.target,
                args_info=ms.arg_info.ArgInfo.from_entry_func(mod, remove_preproc=False),
            )
        )


def import_database(folder: str | os.PathLike[str]) -> list[DatabaseEntry]:
    """All valid tuning records of a MetaSchedule JSON database, the fastest first.

    Records without run times, and TVM's sentinel for a failed run, are left out.

    Raises:
        RecordError: there is no database or it cannot be read.
    """
    from tvm.s_tir import meta_schedule as ms

    folder = pathlib.Path(folder)
    for name in ("database_workload.json", "database_tuning_record.json"):
        if not (folder / name).is_file():
            raise errors.RecordError(f"no MetaSchedule database in {folder}: {name} is missing")
    try:
        database = ms.database.JSONDatabase(work_dir=str(folder), allow_missing=False)
        tuning_records = database.get_all_tuning_records()
    except (RuntimeError, ValueError, TypeError, KeyError, AttributeError) as error:
        first = str(error).strip().splitlines() or ["unreadable"]
        raise errors.RecordError(f"cannot read the database in {folder}: {first[-1]}") from error
    return _valid_entries(tuning_records)


def parse_database(workloads: str, tuning_records: str, max_workloads: int) -> list[DatabaseEntry]:
    """`import_database` of the texts of the two files; nothing is written.

    Raises:
        RecordError: they are malformed, or have more workloads than `max_workloads`.
    """
    from tvm.s_tir import meta_schedule as ms

    programs = [line for line in workloads.splitlines() if line.strip()]
    if len(programs) > max_workloads:
        raise errors.RecordError(
            f"the database has {len(programs)} workloads, more than {max_workloads}"
        )
    try:
        read = [ms.database.Workload.from_json(json.loads(line)) for line in programs]
        pairs = [json.loads(line) for line in tuning_records.splitlines() if line.strip()]
        parsed = [
            ms.database.TuningRecord.from_json(record, read[_index(number, len(read))])
            for number, record in pairs
        ]
    except (RuntimeError, ValueError, TypeError, KeyError, AttributeError) as error:
        first = str(error).strip().splitlines() or ["unreadable"]
        raise errors.RecordError(f"cannot read the database: {first[-1]}") from error
    return _valid_entries(parsed)


def _index(number: object, n: int) -> int:
    if type(number) is not int or not 0 <= number < n:
        raise ValueError("a record names a workload that is not there")
    return number


def _valid_entries(tuning_records: Iterable[Any]) -> list[DatabaseEntry]:
    """Those that ran, the fastest first."""
    entries = [
        DatabaseEntry(
            mod=record.workload.mod,
            trace=record.trace,
            latencies_us=tuple(float(seconds) * 1e6 for seconds in record.run_secs),
            target=record.target,
        )
        for record in tuning_records
        if record.run_secs and all(0 < float(s) < _FAILED_RUN_S for s in record.run_secs)
    ]
    return sorted(entries, key=lambda entry: sum(entry.latencies_us) / len(entry.latencies_us))


#: TVM writes 1e9 s and more for a run that failed.
_FAILED_RUN_S = 1e9


def _cut_torn_line(fd: int) -> None:
    """Shorten a file to its last complete line."""
    size = os.lseek(fd, 0, os.SEEK_END)
    end = size
    while end > 0:
        start = max(end - 65536, 0)
        newline = os.pread(fd, end - start, start).rfind(b"\n")
        if newline >= 0:
            end = start + newline + 1
            break
        end = start
    if end < size:
        os.ftruncate(fd, end)


def _typed(fields: dict[str, Any]) -> dict[str, Any]:
    """JSON values as a `Record` holds them; raises TypeError or ValueError on a wrong kind."""
    measured = dict(fields["measurement"])
    measured["latencies_us"] = tuple(float(value) for value in measured["latencies_us"])
    if measured["error"] is not None:
        measured["error"] = protocol.ErrorClass(measured["error"])
    checked = fields | {
        "decisions": _integers(fields["decisions"]),
        "measurement": protocol.Measurement(**measured),
    }
    kinds: dict[str, type | tuple[type, ...]] = {
        "task_key": str,
        "task_name": str,
        "sketch_index": int,
        "sketch_key": str,
        "predicted_us": (int, float, type(None)),
        "round": int,
        "elapsed_s": (int, float),
        "timestamp": (int, float),
        "versions": dict,
        "repeat": bool,
        "variant": str,
    }
    checked.setdefault("repeat", False)  # older records have none
    checked.setdefault("variant", "stock")
    for name, kind in kinds.items():
        if not isinstance(checked[name], kind):
            raise TypeError(f"{name} is {checked[name]!r}")
    return checked


def _integers(values: Sequence[Any]) -> tuple[int, ...]:
    if not all(type(value) is int for value in values):
        raise TypeError(f"decisions are {values!r}")
    return tuple(values)
