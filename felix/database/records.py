"""Tuning records: what was measured, on disk.

A record file is JSON Lines: one `Trial` a line, in the order of measuring, each written with
one system call, so a killed process loses no record whose writing returned and leaves at most
one torn line at the end, which readers skip and the next writer cuts off. Latencies are in
microseconds, durations in seconds, `timestamp` is in seconds since 1970 (UTC).

Users have this module as `felix.records`, with MetaSchedule's databases (`metaschedule_files`).
"""

from __future__ import annotations

import dataclasses
import enum
import importlib.metadata
import json
import os
import pathlib
import platform
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Self, TypeAlias

from felix import errors, version
from felix.database.metaschedule_files import DatabaseEntry, export_database, import_database
from felix.runner import protocol

__all__ = [
    "DatabaseEntry", "Key", "State", "Trial", "Writer", "add_effective", "effective_measurements",
    "export_database", "fastest", "import_database", "iterate", "read", "versions",
]  # fmt: skip

#: Version of the lines written here.
FORMAT = 1

#: Sketch index and decisions: what makes two candidates of a task the same.
Key: TypeAlias = tuple[int, tuple[int, ...]]


class State(enum.StrEnum):
    """How far a trial is. What is built waits in the measurer's queues, as what is not does."""

    ASKED = "asked"
    TIMED = "timed"
    FAILED = "failed"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A candidate in a run: whose it is, which decisions, what measuring gave and when.

    `predicted_us` is what the cost model predicted before measuring, None without a model;
    `round` counts rounds of the task from 0. `measurement` is None until it is there; `elapsed_s`
    since the start of tuning and `timestamp` are those of its coming. A `repeat` is another,
    longer measurement of a candidate at the end of a run; it counts as no trial. `variant`
    is the program of the task that the sketch schedules (`felix.tir.design_space.variants`), or
    the name of the template (`felix.templates`) whose parameters the decisions are.
    """

    task_key: str
    task_name: str
    sketch_index: int
    sketch_key: str
    decisions: tuple[int, ...]
    measurement: protocol.Measurement | None = None
    predicted_us: float | None
    round: int
    elapsed_s: float = 0.0
    timestamp: float = 0.0
    versions: Mapping[str, str]
    repeat: bool = False
    variant: str = "stock"

    @property
    def key(self) -> Key:
        """Which candidate of its task this is of."""
        return self.sketch_index, self.decisions

    @property
    def state(self) -> State:
        """How far it is."""
        if self.measurement is None:
            return State.ASKED
        return State.TIMED if self.measurement.ok else State.FAILED

    @property
    def measured(self) -> protocol.Measurement:
        """What measuring gave; of a trial that is timed or failed."""
        assert self.measurement is not None, "the trial is not measured yet"
        return self.measurement

    @property
    def latency_us(self) -> float | None:
        """Median latency; None if it is not timed."""
        return None if self.measurement is None else self.measurement.latency_us

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


def effective_measurements(every: Iterable[Trial]) -> dict[Key, Trial]:
    """The trial that counts of each candidate of one task that ran and was checked.

    It is the last repeat of a candidate that was measured again (none if that failed), else its
    fastest measurement.
    """
    effective: dict[Key, Trial] = {}
    for trial in every:
        add_effective(effective, trial)
    return effective


def add_effective(effective: dict[Key, Trial], trial: Trial) -> None:
    """Let one more trial of a task count in what `effective_measurements` made of the earlier."""
    latency_us = trial.latency_us
    earlier = effective.get(trial.key)
    if trial.repeat:
        effective.pop(trial.key, None)
    if latency_us is None or not trial.measured.checked:
        return
    if trial.repeat or earlier is None:
        effective[trial.key] = trial
    elif not earlier.repeat and latency_us < (earlier.latency_us or 0.0):
        effective[trial.key] = trial


def fastest(effective: Mapping[Key, Trial], is_remeasured: bool) -> Trial | None:
    """The fastest candidate by its effective measurement.

    Once the best of a run were measured again (`is_remeasured`), the fastest of those: any other
    was not as fast, or is fast by luck.
    """
    repeats = [trial for trial in effective.values() if trial.repeat] if is_remeasured else []
    ranked = repeats or list(effective.values())
    return min(ranked, key=lambda r: r.latency_us or 0.0, default=None)


class Writer:
    """Appends records to a file; each is on its way to disk when `append` returns.

    Raises:
        OutputError: the file cannot be written.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = pathlib.Path(path)
        with errors.writing(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            flags = os.O_RDWR | os.O_CREAT | os.O_APPEND
            self._fd: int | None = os.open(self.path, flags, 0o644)
            _cut_torn_line(self._fd)

    def append(self, trial: Trial) -> None:
        """Write one trial as one line."""
        if self._fd is None:
            raise errors.OutputError(f"{self.path} is closed")
        line = (trial.to_json() + "\n").encode()
        with errors.writing(self.path):
            while line:  # one write, but for a full disk or a signal
                line = line[os.write(self._fd, line) :]

    def close(self) -> None:
        """Close the file; may be called twice."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


def read(path: str | os.PathLike[str]) -> list[Trial]:
    """All records of a file, in order; a torn last line is skipped.

    Raises:
        RecordError: the file cannot be read, or a complete line is malformed.
    """
    return list(iterate(path))


def iterate(path: str | os.PathLike[str]) -> Iterator[Trial]:
    """`read`, one record at a time."""
    try:
        with open(path, "rb") as file:
            for number, line in enumerate(file, start=1):
                if not line.endswith(b"\n"):
                    return  # torn: the writer was killed here
                try:
                    yield Trial.from_json(line.decode())
                except (errors.RecordError, UnicodeDecodeError) as error:
                    raise errors.RecordError(f"{path}, line {number}: {error}") from error
    except OSError as error:
        raise errors.RecordError(f"cannot read {path}: {error.strerror}") from error


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
    """JSON values as a `Trial` holds them; raises TypeError or ValueError on a wrong kind."""
    measured = dict(fields["measurement"])
    measured["latencies_us"] = tuple(float(value) for value in measured["latencies_us"])
    if measured["error"] is not None:
        measured["error"] = protocol.ErrorClass(measured["error"])
    checked = fields | {
        "decisions": _integers(fields["decisions"]),
        "measurement": protocol.Measurement(**measured),
    }
    kinds: dict[str, type | tuple[type, ...]] = {
        **dict.fromkeys(("task_key", "task_name", "sketch_key", "variant"), str),
        **dict.fromkeys(("sketch_index", "round"), int),
        **dict.fromkeys(("elapsed_s", "timestamp"), (int, float)),
        "predicted_us": (int, float, type(None)),
        "versions": dict,
        "repeat": bool,
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
