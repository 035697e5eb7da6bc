"""A tuning session on disk: what a run needs to go on after it was killed at any moment.

    session.json          written once: tasks, versions, strategy and seed; who this session is of
    records.jsonl         every measurement, one line each, written before anything else learns it
    state.json            replaced after each round: search, allocation, budget, time spent
    model-N.safetensors   the cost model's state that state.json names

`state.json` and the model are written to temporary files and renamed, the model first, so a
kill leaves the old pair or the new one. Records that are newer than the state are replayed by
the run that resumes: nothing is measured twice and nothing is lost. A file lock keeps a second
process out.
"""

from __future__ import annotations

import dataclasses
import fcntl
import json
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from felix import errors, files
from felix.database import records
from felix.runner import protocol
from felix.search import strategies

if TYPE_CHECKING:
    import torch

    from felix.task import Task

#: Version of the folder's layout.
FORMAT = 1

#: The session's folder inside a run's output folder.
FOLDER = "tuning"

_Trial = records.Trial  # a journal's field has the module's name


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """What must be equal for a session to be resumed; of its state, versions of features, too."""

    task_keys: tuple[str, ...]
    strategy: str
    seed: int
    features_version: int
    #: of `felix.templates.spec`
    template_features_version: int
    versions: Mapping[str, str]


class Journal(Protocol):
    """What a run stores, and what an earlier one left; `Session` stores it in a folder."""

    records: list[_Trial]
    #: of the last checkpoint; None if there is none
    state: dict[str, Any] | None
    tensors: dict[str, torch.Tensor]

    def append(self, trial: _Trial) -> None:
        """Write one record; it is safe when this returns."""
        ...

    def save(self, state: Mapping[str, Any], tensors: Mapping[str, torch.Tensor]) -> None:
        """Replace the checkpoint."""
        ...

    def close(self) -> None:
        """Let others in; may be called twice."""
        ...


def identity(tasks: Sequence[Task], strategy: str, seed: int) -> Identity:
    """The identity of a run of this version."""
    from felix.features import spec
    from felix.templates import spec as template_spec

    return Identity(
        task_keys=tuple(task.key for task in tasks),
        strategy=strategy,
        seed=seed,
        features_version=spec.FEATURES_VERSION,
        template_features_version=template_spec.VERSION,
        versions=records.versions(),
    )


def strategy_of(out: pathlib.Path) -> str | None:
    """The strategy of the session in an output folder; None: there is no session, or it does not
    say.

    Raises:
        RecordError: it is damaged, or of a strategy that there is no more.
    """
    path = out / FOLDER / "session.json"
    stored = read_json(path).get("strategy") if path.exists() else None
    if not isinstance(stored, str):
        return None
    if stored not in (*strategies.NAMES, strategies.CUSTOM):
        raise errors.RecordError(
            f"the session in {path.parent} is of the strategy {stored!r}, which there is no more: "
            "use another output folder, or do not resume"
        )
    return stored


class Session:
    """An open session; one process at a time.

    Args:
        folder: the session's own folder.
        tasks: what is tuned.
        identity: of this run.
        resume: go on with the session in the folder, if there is one, from its records alone
            where features had another version. Otherwise a session that is there already gets
            another name (`tuning-1`, ...).

    Raises:
        OutputError: the folder cannot be written, or another process uses it.
        RecordError: the session there is of other tasks, options or versions, or is damaged.
    """

    def __init__(
        self, folder: pathlib.Path, tasks: Sequence[Task], identity: Identity, resume: bool
    ) -> None:
        self.folder = folder
        self.records: list[records.Trial] = []
        self.state: dict[str, Any] | None = None
        self.tensors: dict[str, torch.Tensor] = {}
        with errors.writing(f"to {folder}"):
            folder.parent.mkdir(parents=True, exist_ok=True)
            self._lock = _lock(folder)
            try:
                if resume and (folder / "session.json").exists():
                    self._load(tasks, identity)
                else:
                    _set_aside(folder)
                    folder.mkdir(exist_ok=True)
                    files.write_atomically(folder / "session.json", _describe(tasks, identity))
                self._writer = records.Writer(folder / "records.jsonl")
            except BaseException:
                os.close(self._lock)
                raise

    def append(self, trial: records.Trial) -> None:
        """Write one record; it is safe when this returns."""
        self._writer.append(trial)
        self.records.append(trial)

    def save(self, state: Mapping[str, Any], tensors: Mapping[str, torch.Tensor]) -> None:
        """Replace the checkpoint."""
        from felix import tensorfile

        with errors.writing(f"to {self.folder}"):
            name = None
            if tensors:
                name = f"model-{len(self.records)}.safetensors"
                tensorfile.write(self.folder / name, tensors, {"felix": "session"})
            content = {**state, "format": FORMAT, "tensors": name, "n_records": len(self.records)}
            files.write_atomically(self.folder / "state.json", json.dumps(content))
            for path in self.folder.glob("model-*.safetensors"):
                if path.name != name:
                    path.unlink()

    def close(self) -> None:
        """Close the files and let others in; may be called twice."""
        self._writer.close()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def _load(self, tasks: Sequence[Task], identity: Identity) -> None:
        stored = read_json(self.folder / "session.json")
        expected = json.loads(_describe(tasks, identity))
        for field, label in (
            ("format", "format"),
            ("task_keys", "workload or target"),
            ("strategy", "strategy"),
            ("seed", "seed"),
            ("versions", "software versions"),
        ):
            if stored.get(field) != expected[field]:
                raise errors.RecordError(
                    f"the session in {self.folder} is of another {label}: use another output "
                    "folder, or do not resume"
                )
        if (self.folder / "records.jsonl").exists():
            self.records = records.read(self.folder / "records.jsonl")
        names = ("features_version", "template_features_version")
        if any(stored.get(name) != expected[name] for name in names):
            # Searches and models work on features: they start again, from the records.
            files.write_atomically(self.folder / "session.json", _describe(tasks, identity))
        elif (self.folder / "state.json").exists():
            self._load_state()

    def _load_state(self) -> None:
        from felix import tensorfile

        state = read_json(self.folder / "state.json")
        if state.get("format") != FORMAT or not isinstance(state.get("n_records"), int):
            raise errors.RecordError(f"{self.folder / 'state.json'} is malformed")
        if state["n_records"] > len(self.records):
            raise errors.RecordError(
                f"{self.folder / 'records.jsonl'} has fewer records than the checkpoint beside it"
            )
        if state.get("tensors") is not None:
            self.tensors, _ = tensorfile.read(self.folder / pathlib.Path(state["tensors"]).name)
        self.state = state


def read_json(path: pathlib.Path) -> dict[str, Any]:
    """A JSON object from a file; RecordError if there is none."""
    try:
        content = json.loads(path.read_text())
    except OSError as error:
        raise errors.RecordError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise errors.RecordError(f"{path} is not valid JSON") from error
    if not isinstance(content, dict):
        raise errors.RecordError(f"{path} holds no JSON object")
    return content


def stored_tasks(folder: pathlib.Path) -> list[Task]:
    """The tasks of a session.

    Raises:
        RecordError: there is no session in the folder or it is malformed.
    """
    from felix.task import Task

    texts = read_json(folder / "session.json").get("tasks")
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise errors.RecordError(f"{folder / 'session.json'} is malformed")
    return [Task.from_json(text) for text in texts]


def stored_baselines(folder: pathlib.Path, n_tasks: int) -> list[protocol.Measurement | None]:
    """Of each task's unscheduled program at the last checkpoint; None: not measured.

    Raises:
        RecordError: the checkpoint is malformed.
    """
    path = folder / "state.json"
    if not path.exists():
        return [None] * n_tasks
    try:
        stored = [state["unscheduled"] for state in read_json(path)["jobs"]]
        baselines = [None if each is None else stored_baseline(each) for each in stored]
    except (KeyError, TypeError, AttributeError) as error:
        raise errors.RecordError(f"{path} is malformed: {error!r}") from error
    if len(baselines) != n_tasks:
        raise errors.RecordError(f"{path} is of another number of tasks")
    return baselines


def to_store(baseline: protocol.Measurement) -> dict[str, Any]:
    """What `stored_baseline` reads."""
    return {name: getattr(baseline, name) for name in ("latency_us", "message", "checked")}


def stored_baseline(stored: Mapping[str, Any]) -> protocol.Measurement:
    """The measurement of an unscheduled program, of a checkpoint."""
    latency_us = stored["latency_us"]
    return protocol.Measurement(
        latency_us=latency_us,
        error=protocol.ErrorClass.LAUNCH if latency_us is None else None,
        message=stored["message"],
        checked=bool(stored.get("checked", False)),  # older checkpoints do not say
    )


def _describe(tasks: Sequence[Task], identity: Identity) -> str:
    texts = [task.to_json() for task in tasks]
    return json.dumps({"format": FORMAT, **dataclasses.asdict(identity), "tasks": texts})


def _lock(folder: pathlib.Path) -> int:
    """Hold the lock file beside the folder; the lock ends with the process."""
    handle = os.open(folder.with_name(f".{folder.name}.lock"), os.O_CREAT | os.O_RDWR, 0o644)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        raise errors.FolderInUse(f"another run is writing to {folder.parent}") from None
    return handle


def _set_aside(folder: pathlib.Path) -> None:
    """Rename an earlier session: what was measured is never deleted."""
    if not folder.exists():
        return
    number = 1
    while folder.with_name(f"{folder.name}-{number}").exists():
        number += 1
    folder.rename(folder.with_name(f"{folder.name}-{number}"))
