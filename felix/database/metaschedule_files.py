"""MetaSchedule databases in and out: workloads and schedule traces in TVM's own format.

Stock TVM applies the best one with `tvm.s_tir.meta_schedule.tir_integration.compile_tir`. There is
no place for a generated program (`felix.templates`), which no trace makes.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import pathlib
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from felix import errors

if TYPE_CHECKING:
    import tvm


#: Workloads and tuning records of a database.
FILES = ("database_workload.json", "database_tuning_record.json")


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
    with errors.writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for name in FILES:
            with open(folder / name, "ab"):
                pass  # TVM would report an unwritable file as an internal error
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
    folder = pathlib.Path(folder)
    for name in FILES:
        if not (folder / name).is_file():
            raise errors.RecordError(f"no MetaSchedule database in {folder}: {name} is missing")
    try:
        workloads, tuning_records = ((folder / name).read_text() for name in FILES)
    except (OSError, UnicodeDecodeError) as error:
        raise errors.RecordError(f"cannot read the database in {folder}: {error}") from error
    return parse_database(workloads, tuning_records, where=f" in {folder}")


def parse_database(
    workloads: str, tuning_records: str, max_workloads: float = math.inf, where: str = ""
) -> list[DatabaseEntry]:
    """`import_database` of the texts of the two files, which a message says are `where`.

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
        raise errors.RecordError(f"cannot read the database{where}: {first[-1]}") from error
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
