"""From measured schedules to training arrays: features per task, padded, with a cache.

Notation: a task is one workload on one target and device; N schedules, R rows (padded to the
task's largest), F features; rows [N, R, F] float32, mask [N, R] bool, ln_latency [N] float64 of
microseconds (NaN where the schedule failed). Features are computed from the decisions by a
`Featurizer` and cached locally by the code of the features and content; the cache may be deleted.
Those that records have themselves are taken as they are where their version is the featurizer's.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import hashlib
import json
import math
import zipfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from costmodel.data import dataset as datasets
from felix import errors, files
from felix.features.kind import FeatureKind

#: The feature that depends on how a program is built, and not on its schedule alone.
ASYNC_BYTES = "async_bytes"


@dataclass(frozen=True, slots=True)
class Rows:
    """Features of N schedules: values [N, R, F], mask [N, R]."""

    values: NDArray[np.float32]
    mask: NDArray[np.bool_]


Batch = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Machine:
    """Where schedules were measured: the TVM target, and the device as records describe it.

    Features depend on the measured machine's caches and rates, not on those of the machine
    that computes them.
    """

    target: str
    device: str


class Featurizer(Protocol):
    """Turns decisions into rows; `felix_bridge.FelixFeaturizer` is the real one.

    Attributes:
        kind: of features, and so of the records that are used.
        version: of the features, as checkpoints carry it.
        digest: of the code that computes them; cached rows of other code are not used.
    """

    kind: FeatureKind
    version: int
    digest: str

    def names(self) -> tuple[str, ...]:
        """Feature names in column order (known after the first call of `rows` at the latest)."""
        ...

    def rows(
        self, machine: Machine, workload: datasets.Workload, sketch: tuple[int, str], batch: Batch
    ) -> Rows | None:
        """Rows of a batch of decisions; None when that sketch no longer exists."""
        ...


@dataclass(frozen=True, slots=True)
class TaskData:
    """All schedules of one task."""

    workload: datasets.Workload
    target: str
    device: str
    rows: NDArray[np.float32]
    mask: NDArray[np.bool_]
    ln_latency: NDArray[np.float64]
    errors: tuple[str | None, ...]
    #: how each was chosen (`dataset.Record.source`)
    sources: tuple[str, ...]

    @property
    def name(self) -> str:
        """Name for tables."""
        return self.workload.name

    @property
    def measured(self) -> NDArray[np.bool_]:
        """Which schedules have a latency [N]."""
        return np.isfinite(self.ln_latency)

    def only(self, positions: NDArray[np.intp]) -> TaskData:
        """The task with some of its schedules."""
        return dataclasses.replace(
            self,
            rows=self.rows[positions],
            mask=self.mask[positions],
            ln_latency=self.ln_latency[positions],
            errors=tuple(self.errors[position] for position in positions.tolist()),
            sources=tuple(self.sources[position] for position in positions.tolist()),
        )


@dataclass(frozen=True, slots=True)
class Features:
    """Training data: tasks, feature names, and how many records could not be used."""

    tasks: tuple[TaskData, ...]
    names: tuple[str, ...]
    version: int
    skipped: int


def without(features: Features, patterns: Sequence[str]) -> Features:
    """The same data with every feature that matches a pattern set to 0, so that it tells nothing.

    Raises:
        RecordError: a pattern matches no feature.
    """
    dropped: set[int] = set()
    for pattern in patterns:
        columns = [i for i, name in enumerate(features.names) if fnmatch.fnmatch(name, pattern)]
        if not columns:
            raise errors.RecordError(
                f"no feature is called {pattern}: see docs/reference/features.md"
            )
        dropped.update(columns)
    if not dropped:
        return features
    factors = np.array([i not in dropped for i in range(len(features.names))], dtype=np.float32)
    tasks = tuple(dataclasses.replace(t, rows=t.rows * factors) for t in features.tasks)
    return dataclasses.replace(features, tasks=tasks)


def of_sources(tasks: Sequence[TaskData], sources: Sequence[str]) -> list[TaskData]:
    """The tasks with those schedules alone that were chosen in one of these ways.

    Raises:
        RecordError: no schedule of any task was.
    """
    chosen = [
        task.only(np.flatnonzero([source in sources for source in task.sources])) for task in tasks
    ]
    chosen = [task for task in chosen if task.measured.any()]
    if not chosen:
        raise errors.RecordError(f"no schedule that ran was chosen by {' or '.join(sources)}")
    return chosen


def load_features(
    dataset: datasets.Dataset,
    featurizer: Featurizer,
    cache: Path | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Features:
    """Features of every task with at least one latency.

    Args:
        dataset: measured schedules.
        featurizer: computes rows from decisions.
        cache: folder for computed rows; None to compute always.
        progress: called with (tasks done, tasks) after each task.

    Raises:
        RecordError: no record could be used.
    """
    tasks, skipped = [], 0
    groups = grouped(dataset, featurizer.kind)
    for done, (workload, records) in enumerate(groups, start=1):
        task, n_unused = task_of(workload, records, featurizer, cache)
        skipped += n_unused
        if task is not None and task.measured.any():
            tasks.append(task)
        if progress is not None:
            progress(done, len(groups))
    if not tasks:
        raise errors.RecordError(
            f"no usable schedule among {len(dataset.records)}: none is of a {featurizer.kind} "
            "(--kind), none ran, or the sketches changed"
        )
    return Features(tuple(tasks), featurizer.names(), featurizer.version, skipped)


def grouped(
    dataset: datasets.Dataset, kind: FeatureKind
) -> list[tuple[datasets.Workload, list[datasets.Record]]]:
    """The records of a kind of each task, with its workload; always in the same order."""
    groups: dict[tuple[str, str, str], list[datasets.Record]] = defaultdict(list)
    for record in dataset.records:
        if record.kind is kind:
            groups[record.workload, record.target, record.device].append(record)
    return [(dataset.workloads[key[0]], records) for key, records in sorted(groups.items())]


def task_of(
    workload: datasets.Workload,
    records: Sequence[datasets.Record],
    featurizer: Featurizer,
    cache: Path | None,
) -> tuple[TaskData | None, int]:
    """One task from its records, None if none could be used; and how many could not."""
    by_sketch: dict[tuple[int, str, bool], list[datasets.Record]] = defaultdict(list)
    for record in records:
        is_stored = record.features_version == featurizer.version
        by_sketch[record.sketch, record.sketch_key, is_stored].append(record)
    used: list[datasets.Record] = []
    parts: list[Rows] = []
    machine = Machine(records[0].target, records[0].device)
    for (sketch, key, is_stored), group in sorted(by_sketch.items()):
        if is_stored:
            rows: Rows | None = _stored_rows(group, len(featurizer.names()))
        else:
            batch = np.array([r.decisions for r in group], dtype=np.int64)
            rows = _cached_rows(workload, machine, (sketch, key), batch, featurizer, cache)
        if rows is not None:
            rows = _as_built(rows, group, featurizer.names())
            usable = _usable(rows)
            parts.append(Rows(rows.values[usable], rows.mask[usable]))
            used += [r for r, good in zip(group, usable.tolist(), strict=True) if good]
    if not used:
        return None, len(records)
    stacked = stack(parts)
    ln = [math.nan if r.latency_us is None else math.log(r.latency_us) for r in used]
    task = TaskData(
        workload,
        records[0].target,
        records[0].device,
        stacked.values,
        stacked.mask,
        np.array(ln),
        tuple(r.error for r in used),
        tuple(r.source for r in used),
    )
    return task, len(records) - len(used)


def _stored_rows(records: Sequence[datasets.Record], n_features: int) -> Rows:
    """The features that records of one sketch have themselves.

    Raises:
        RecordError: they are not rows of so many features.
    """
    flat = [record.features for record in records]
    if {len(values) for values in flat} != {len(flat[0])} or len(flat[0]) % n_features:
        where = f"stored features of workload {records[0].workload}"
        raise errors.RecordError(f"{where} are not rows of {n_features}")
    values = np.array(flat, np.float32).reshape(len(flat), -1, n_features)
    return Rows(values, (values != 0).any(axis=-1))


def _as_built(rows: Rows, records: Sequence[datasets.Record], names: Sequence[str]) -> Rows:
    """The rows without asynchronous copies where the programs were built without."""
    if ASYNC_BYTES not in names:
        return rows
    synchronous = np.array([not record.async_copies for record in records])
    values = rows.values.copy()
    values[synchronous, :, list(names).index(ASYNC_BYTES)] = 0.0
    return Rows(values, rows.mask)


def _usable(rows: Rows) -> NDArray[np.bool_]:
    """Schedules whose features are numbers and that have a row at all [N]."""
    usable: NDArray[np.bool_] = np.array(
        [np.isfinite(v).all() and m.any() for v, m in zip(rows.values, rows.mask, strict=True)],
        dtype=np.bool_,
    )
    return usable


def stack(parts: Iterable[Rows]) -> Rows:
    """Concatenate along N, padding R with zero rows to the largest."""
    parts = list(parts)
    n_rows = max(part.mask.shape[1] for part in parts)
    values = [np.pad(p.values, ((0, 0), (0, n_rows - p.mask.shape[1]), (0, 0))) for p in parts]
    masks = [np.pad(p.mask, ((0, 0), (0, n_rows - p.mask.shape[1]))) for p in parts]
    return Rows(np.concatenate(values), np.concatenate(masks))


def _cached_rows(
    workload: datasets.Workload,
    machine: Machine,
    sketch: tuple[int, str],
    batch: Batch,
    featurizer: Featurizer,
    cache: Path | None,
) -> Rows | None:
    if cache is None:
        return featurizer.rows(machine, workload, sketch, batch)
    content = (
        json.dumps([workload.key, machine.target, machine.device, *sketch]).encode()
        + batch.tobytes()
    )
    name = f"{hashlib.sha256(content).hexdigest()[:32]}.npz"
    path = cache / f"v{featurizer.version}-{featurizer.digest[:12]}" / name
    cached = _read_cache(path)
    if cached is not None:
        return cached
    rows = featurizer.rows(machine, workload, sketch, batch)
    if rows is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        with files.replacing(path, durable=False) as file:
            np.savez_compressed(file, values=rows.values, mask=rows.mask)
    return rows


def _read_cache(path: Path) -> Rows | None:
    if not path.exists():
        return None
    try:
        with np.load(path, allow_pickle=False) as stored:
            return Rows(stored["values"], stored["mask"])
    except (OSError, ValueError, KeyError, zipfile.BadZipFile):
        return None  # a torn cache entry is computed again
