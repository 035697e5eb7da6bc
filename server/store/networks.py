"""The network of a job: its groups, what ships of each, and what a call takes.

A group is a program that the network calls. A row has the groups as the model was read. While the
job is tuned their latencies are those of its tasks; once the network was built they are those that
it was built by. Latencies in microseconds.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, TypeAlias

import pydantic
import sqlalchemy as sa
from sqlalchemy import orm

from felix import names
from server.database import models
from server.store import events, leases, rows, statements

#: Groups of a network at most.
MAX_GROUPS = 10_000
#: Why a network was not built is cut after so many characters.
MAX_FAILURE = 2000


def _plain(text: str) -> str:
    if problem := names.text_problem(text):
        raise ValueError(f"has text that {problem}")
    return text


_Text: TypeAlias = Annotated[str, pydantic.Field(max_length=500), pydantic.AfterValidator(_plain)]
_Latency: TypeAlias = Annotated[float, pydantic.Field(gt=0, allow_inf_nan=False)]
_Count: TypeAlias = Annotated[int, pydantic.Field(ge=0, le=2**31 - 1)]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """A program that a network calls.

    Attributes:
        name: of the program.
        calls: how often a call of the network calls it.
        dtypes: element types of its tensors; empty of a group that an earlier version wrote.
        task: number of the job's task; None if Felix cannot tune it.
        untuned: why there is no schedule of Felix; None if there is one, or may come.
        felix_us: latency of a call of Felix's best program.
        tvm_us: of the program as TVM schedules it by default.
        pytorch_us: of PyTorch's operators, where they were timed.
        ships: whose program the network runs; None before it is built.
        reason: why that one, in a line.
    """

    name: _Text
    calls: _Count
    dtypes: Annotated[tuple[_Text, ...], pydantic.Field(max_length=64)] = ()
    task: _Count | None = None
    untuned: _Text | None = None
    felix_us: _Latency | None = None
    tvm_us: _Latency | None = None
    pytorch_us: _Latency | None = None
    ships: Literal["felix", "tvm", "pytorch"] | None = None
    reason: _Text | None = None

    @property
    def latency_us(self) -> float | None:
        """Of a call of what ships; before that is known, of the fastest."""
        by_name = {"felix": self.felix_us, "tvm": self.tvm_us, "pytorch": self.pytorch_us}
        if self.ships is not None:
            return by_name[self.ships]
        return min((us for us in by_name.values() if us is not None), default=None)

    @property
    def total_us(self) -> float | None:
        """Of all its calls."""
        return None if self.latency_us is None else self.calls * self.latency_us


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SharedGroup(Group):
    """A group beside the others of its network.

    Attributes:
        share: of all its calls in those of all groups that have a latency; None if it has none.
    """

    share: float | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """The network of a job.

    Attributes:
        name: of the model.
        groups: those with a task first, in the order of the tasks.
        call_us: median of a whole call by wall clock; None before it is built, and of one that
            was built for a device of a cluster.
        max_error: largest relative difference of its outputs from those of its build without
            tuning; None where `call_us` is.
        failure: why it was not built.
    """

    name: str
    groups: tuple[SharedGroup, ...]
    call_us: float | None
    max_error: float | None
    failure: str | None

    @property
    def is_built(self) -> bool:
        """Whether it is known what each group runs."""
        return _is_built(self.groups)

    @property
    def has_pytorch(self) -> bool:
        """Whether PyTorch's operators were timed."""
        return any(group.pytorch_us is not None for group in self.groups)

    @property
    def latency_us(self) -> float | None:
        """Sum of calls x latency over groups with a task; None while one of them has none."""
        totals = [group.total_us for group in self.groups if group.task is not None]
        return None if None in totals else math.fsum(total for total in totals if total)

    @property
    def dtypes(self) -> tuple[str, ...]:
        """Element types of its groups' tensors, each once."""
        return tuple(dict.fromkeys(each for group in self.groups for each in group.dtypes))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """What a built network is; `checked` makes one of what an engine's process says."""

    call_us: _Latency | None
    max_error: Annotated[float, pydantic.Field(ge=0, allow_inf_nan=False)] | None
    groups: Annotated[tuple[Group, ...], pydantic.Field(max_length=MAX_GROUPS)]


_BUILT = pydantic.TypeAdapter(Built)


def checked(content: Any) -> Built:
    """What an engine's process says of a network it built, read as values of the right kinds.

    Raises:
        ValueError: it is none.
    """
    return _BUILT.validate_python(content)


def create(tx: orm.Session, job_id: int, name: str, groups: Sequence[Group]) -> None:
    """Note the network that a new job is to put together."""
    tx.add(models.Network(job_id=job_id, name=name, groups=_json(groups)))
    tx.flush()


def of_job(tx: orm.Session, job_id: int, tasks: Sequence[rows.Task]) -> Network | None:
    """The network of a job with these tasks; None if it puts none together."""
    stored = tx.get(models.Network, job_id, populate_existing=True)
    if stored is None:
        return None
    every = tuple(_read(group) for group in stored.groups)
    if not _is_built(every):
        by_number = {task.number: task for task in tasks}
        every = tuple(_measured(group, by_number) for group in every)
    return Network(
        name=stored.name,
        groups=_shared(every),
        call_us=stored.call_us,
        max_error=stored.max_error,
        failure=stored.failure,
    )


def name_of(tx: orm.Session, job_id: int) -> str | None:
    """Name of the network of a job; None if it puts none together."""
    return tx.scalar(sa.select(models.Network.name).where(models.Network.job_id == job_id))


def n_groups(tx: orm.Session, job_id: int) -> int:
    """Groups of the network of a job; 0 if it puts none together."""
    stored = tx.get(models.Network, job_id)
    return 0 if stored is None else len(stored.groups)


def finish(tx: orm.Session, fence: leases.Fence, built: Built) -> None:
    """The network is built: what ships of each group, and what a call takes.

    Raises:
        LeaseLost
    """
    values = {"call_us": built.call_us, "max_error": built.max_error, "failure": None}
    _change(tx, fence, values | {"groups": _json(built.groups)}, values)


def fail(tx: orm.Session, fence: leases.Fence, failure: str) -> None:
    """The network could not be built; what was measured and its files stay.

    Raises:
        LeaseLost
    """
    line = " ".join(failure.split())[:MAX_FAILURE]
    _change(tx, fence, {"failure": line}, {"failure": line})


def copy(tx: orm.Session, job_id: int, source_id: int) -> None:
    """Take what another job built of the same model; the name stays."""
    source, target = (tx.get_one(models.Network, number) for number in (source_id, job_id))
    target.groups = source.groups
    target.call_us, target.max_error = source.call_us, source.max_error
    tx.flush()


def _change(
    tx: orm.Session, fence: leases.Fence, values: Mapping[str, Any], payload: Mapping[str, Any]
) -> None:
    leases.lock_job(tx, fence)
    statements.update(tx, models.Network, models.Network.job_id == fence.job_id, **values)
    events.append(tx, fence.job_id, events.Type.NETWORK, payload)


def _is_built(groups: Sequence[Group]) -> bool:
    return any(group.ships is not None for group in groups)


def _json(groups: Sequence[Group]) -> list[Any]:
    return [dataclasses.asdict(group) for group in groups]


def _read(stored: Mapping[str, Any]) -> Group:
    return Group(**{**stored, "dtypes": tuple(stored.get("dtypes", ()))})


def _shared(groups: Sequence[Group]) -> tuple[SharedGroup, ...]:
    whole_us = math.fsum(group.total_us or 0.0 for group in groups)
    return tuple(
        SharedGroup(
            **{field.name: getattr(group, field.name) for field in dataclasses.fields(group)},
            share=None if group.total_us is None else group.total_us / whole_us,
        )
        for group in groups
    )


def _measured(group: Group, tasks: Mapping[int, rows.Task]) -> Group:
    """A group with the latencies of its task, as they are now."""
    task = None if group.task is None else tasks.get(group.task)
    if task is None:
        return group
    felix_us = None if task.ships_unscheduled else task.best_us
    return dataclasses.replace(group, felix_us=felix_us, tvm_us=task.unscheduled_us)
