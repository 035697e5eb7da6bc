"""What the store returns: frozen copies of rows, with the fields of `server.database.fields`."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar, Generic, TypeVar

from sqlalchemy import orm

from server import states
from server.database import fields

R = TypeVar("R", bound="Row")
#: What the next page begins after.
After = TypeVar("After")


class Row:
    """A copy of a table's row; a subclass says which fields, by inheriting their declarations."""

    _names: ClassVar[tuple[str, ...]]

    def __init_subclass__(cls) -> None:
        declared = (vars(base).get("__annotations__", {}) for base in reversed(cls.__mro__))
        cls._names = tuple(name for names in declared for name in names if name != "_names")

    def __init__(self, **values: Any) -> None:
        missing = set(self._names) - set(values)
        if missing or len(values) != len(self._names):
            raise TypeError(f"{type(self).__name__} has the fields {', '.join(self._names)}")
        vars(self).update(values)

    def __setattr__(self, name: str, value: object) -> None:
        raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and vars(other) == vars(self)

    def __repr__(self) -> str:
        values = ", ".join(f"{name}={vars(self)[name]!r}" for name in self._names)
        return f"{type(self).__name__}({values})"

    @classmethod
    def of(cls: type[R], model: orm.DeclarativeBase, **others: Any) -> R:
        """The copy of a model; `others` are the fields that its table does not have."""
        names = (name for name in cls._names if name not in others)
        return cls(**{name: getattr(model, name) for name in names}, **others)


class Project(Row, fields.Project):
    """A team and its limits."""


class Key(Row, fields.Key):
    """An API key; its secret is known to its user only."""


class Login(Row, fields.Login):
    """A dashboard login."""


class Job(Row, fields.Job):
    """A job."""

    tags: tuple[str, ...]

    @property
    def progress(self) -> float | None:
        """Share of the budget that is spent, 0 to 1; None without a budget."""
        if self.state is states.State.SUCCEEDED:
            return 1.0
        shares = []
        if self.trials:
            shares.append(self.n_trials / self.trials)
        if self.seconds:
            shares.append(self.elapsed_s / self.seconds)
        return min(1.0, max(shares)) if shares else None


class Task(Row, fields.Task):
    """A tensor program of a job."""


class Trial(Row, fields.Trial):
    """One measured candidate; `task` is the task's number."""


class Round(Row, fields.Round):
    """A round of the search; `steps` has step, temperature, loss and penalty."""


class Training(Row, fields.Training):
    """One fine-tuning of the cost model."""


class Event(Row, fields.Event):
    """Something that happened to a job."""


class Artifact(Row, fields.Artifact):
    """A file of a job; its content is in the blob store under `sha256`."""


class Template(Row, fields.Template):
    """A named request for a job."""


class Batch(Row, fields.Batch):
    """Jobs that one request submitted."""


class ImportedSchedule(Row, fields.ImportedSchedule):
    """A schedule of an imported database."""


class Worker(Row, fields.Worker):
    """A tuner; `job_id` is what it works on, `is_alive` whether it sent a heartbeat lately."""

    job_id: int | None
    is_alive: bool


class DeviceReport(Row, fields.DeviceReport):
    """A device as its tuner last saw it."""

    @property
    def error_rate(self) -> float | None:
        """Share of the candidates of the last hour that failed by the device's fault."""
        return self.n_failed / self.n_measured if self.n_measured else None


class Webhook(Row, fields.Webhook):
    """An address that is told of changes; its secret is shown once."""


class Delivery(Row, fields.Delivery):
    """One notification for one webhook."""


class Audit(Row, fields.Audit):
    """What a key did."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A device that tuners have or had, and which of them."""

    name: str
    kind: str
    target_keys: list[str]
    target: dict[str, Any]
    hardware: dict[str, Any]
    #: `pretrained`; None for the analytic cost model
    model: str | None
    n_tuners_alive: int
    worker_ids: list[int]
    reports: list[DeviceReport]


@dataclasses.dataclass(frozen=True, slots=True)
class Page(Generic[R, After]):
    """Some rows of a list; `next` is the `after` of the next page, None on the last."""

    items: tuple[R, ...]
    next: After | None


@dataclasses.dataclass(frozen=True, slots=True)
class CurvePoint:
    """Best so far after `trial` trials."""

    trial: int
    elapsed_s: float
    measured_s: float
    best_us: float


@dataclasses.dataclass(frozen=True)
class Predicted:
    """The latency of a trial as the cost model predicted it, and as it was measured."""

    trial: int
    task: int
    round: int
    predicted_us: float
    latency_us: float
