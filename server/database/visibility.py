"""Whose rows a transaction sees: those of one project, or all.

A transaction of a project gives every statement the condition that its rows are the project's, so
no verb of the store can forget it, and what another project has is as absent as what was never
made. A statement that could not be given one is refused. A model is a project's by its column
`project`, or by the job or key that its column `job_id` or `key_id` names; any other has to be in
`SHARED`.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import sqlalchemy as sa
from sqlalchemy import orm

from server.database import models


@dataclasses.dataclass(frozen=True, slots=True)
class Visibility:
    """The rows of a project; of None those of all."""

    project: str | None


EVERYTHING = Visibility(None)

#: What all projects see: the machines. Logins are only read by their secret.
SHARED: frozenset[type[models.Base]] = frozenset(
    {models.Worker, models.DeviceReport, models.Login}
)

#: A statement with this execution option sees all projects: for what they share, such as contents.
UNRESTRICTED = "felix_unrestricted"


class RestrictedSession(orm.Session):
    """A session that sees the rows of the project in its `info`."""


def session(bind: sa.Engine, sees: Visibility) -> orm.Session:
    """A session that sees these rows."""
    kind = orm.Session if sees.project is None else RestrictedSession
    return kind(bind, expire_on_commit=False, info={"sees": sees})


@sa.event.listens_for(RestrictedSession, "do_orm_execute")
def _restrict(state: orm.ORMExecuteState) -> None:
    """Add the conditions to a statement; loading more columns of a visible row needs none.

    Raises:
        TypeError: the statement names tables, not models, so no condition could be added.
    """
    if state.is_column_load or state.is_relationship_load:
        return
    if state.execution_options.get(UNRESTRICTED, False):
        return
    if not state.is_orm_statement:
        raise TypeError("a transaction of a project needs statements of models")
    if not state.is_insert:
        project: str = state.session.info["sees"].project
        state.statement = state.statement.options(*_conditions(project))


@functools.lru_cache(maxsize=1024)
def _conditions(project: str) -> tuple[Any, ...]:
    return tuple(
        orm.with_loader_criteria(model, _condition(model, project), include_aliases=True)
        for model in owned_models()
    )


@functools.cache
def owned_models() -> tuple[type[models.Base], ...]:
    """The models whose rows belong to projects."""
    mapped = [mapper.class_ for mapper in models.Base.registry.mappers]
    return tuple(sorted(set(mapped) - SHARED, key=lambda model: str(model.__tablename__)))


def _condition(model: Any, project: str) -> sa.ColumnElement[bool]:
    if model is models.Project:
        owner = model.name
    elif hasattr(model, "project"):
        owner = model.project
    elif hasattr(model, "job_id"):
        visible = sa.alias(models.Job.__table__, "visible_jobs")
        return sa.exists().where(visible.c.id == model.job_id, visible.c.project == project)
    elif hasattr(model, "key_id"):
        owner_key = sa.alias(models.Key.__table__, "visible_keys")
        return sa.exists().where(owner_key.c.id == model.key_id, owner_key.c.project == project)
    else:
        raise TypeError(f"{model.__name__} belongs to no project and is not in SHARED")
    condition: sa.ColumnElement[bool] = owner == project
    return condition
