"""Projects: made, listed, limited; what they use. A project is never removed or renamed."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy import orm

from server import errors, states
from server.database import columns, fields, models
from server.store import rows, statements

#: The project of keys and jobs that name none.
DEFAULT = fields.DEFAULT_PROJECT


#: What a project may have; None is the service's limit, or none.
LIMITS = ("max_running_jobs", "max_trials", "max_bytes", "retention_days")


@dataclasses.dataclass(frozen=True, slots=True)
class Usage:
    """What a project has: jobs that are not finished, and bytes of files."""

    n_jobs: int
    n_bytes: int


def create(tx: orm.Session, name: str, **limits: int | None) -> rows.Project:
    """Make a project with some `LIMITS`.

    Raises:
        Conflict: there is one of that name.
    """
    if tx.get(models.Project, name) is not None:
        raise errors.Conflict(f"there is a project {name!r}: take another name")
    row = models.Project(name=name, created_at=columns.db_now(), **limits)
    tx.add(row)
    try:
        tx.flush()
    except sa.exc.IntegrityError as error:  # another request made it at the same time
        raise errors.Conflict(f"there is a project {name!r}: take another name") from error
    tx.refresh(row)
    return rows.Project.of(row)


def every(tx: orm.Session) -> list[rows.Project]:
    """All projects, by name."""
    query = sa.select(models.Project).order_by(models.Project.name)
    return [rows.Project.of(row) for row in tx.scalars(query)]


def get(tx: orm.Session, name: str) -> rows.Project:
    """One project.

    Raises:
        NotFound
    """
    missing = "there is no such project: see /v1/projects"
    return rows.Project.of(statements.get(tx, models.Project, name, missing))


def change(tx: orm.Session, name: str, **limits: int | None) -> rows.Project:
    """Replace all `LIMITS` of a project.

    Raises:
        NotFound
    """
    get(tx, name)
    values = dict.fromkeys(LIMITS) | limits
    statements.update(tx, models.Project, models.Project.name == name, **values)
    return get(tx, name)


def usage(tx: orm.Session, name: str) -> Usage:
    """What a project has now; a content that several of its jobs have counts once."""
    return usages(tx, [name])[name]


def usages(tx: orm.Session, names: Sequence[str]) -> dict[str, Usage]:
    """`usage` of several projects, by name."""
    artifact, job = models.Artifact, models.Job
    active = (job.project.in_(names), job.state.in_(states.ACTIVE))
    counted = sa.select(job.project, sa.func.count()).where(*active).group_by(job.project)
    n_jobs = {name: int(count) for name, count in tx.execute(counted)}
    contents = (
        sa.select(job.project, artifact.sha256, artifact.size_bytes)
        .join(job, job.id == artifact.job_id)
        .where(job.project.in_(names))
        .distinct()
        .subquery()
    )
    summed = sa.select(contents.c.project, sa.func.sum(contents.c.size_bytes))
    sums = tx.execute(summed.group_by(contents.c.project))
    n_bytes = {name: int(size_bytes) for name, size_bytes in sums}
    return {name: Usage(n_jobs.get(name, 0), n_bytes.get(name, 0)) for name in names}


def check_quota(tx: orm.Session, name: str, trials: int | None, n_bytes: int = 0) -> None:
    """Whether a project may have one more job of so many trials and bytes.

    The project's row stays locked until the transaction ends, so two requests cannot both take
    the last place.

    Raises:
        QuotaExceeded: too many unfinished jobs, or too many trials.
        StorageFull: its files would take more than it may have.
    """
    query = sa.select(models.Project).where(models.Project.name == name).with_for_update()
    project = tx.scalar(query.execution_options(populate_existing=True))
    if project is None:
        raise errors.NotFound("there is no such project")
    if trials is not None and project.max_trials is not None and trials > project.max_trials:
        raise errors.QuotaExceeded(
            f"{trials} trials are more than the {project.max_trials} a job of this project may "
            "ask for"
        )
    if project.max_running_jobs is None and project.max_bytes is None:
        return
    used = usage(tx, name)
    if project.max_running_jobs is not None and used.n_jobs >= project.max_running_jobs:
        raise errors.QuotaExceeded(
            f"this project has {used.n_jobs} jobs that are not finished, and may have "
            f"{project.max_running_jobs}: wait, pause or cancel some"
        )
    if project.max_bytes is not None and used.n_bytes + n_bytes > project.max_bytes:
        raise errors.StorageFull(
            f"the files of this project take {used.n_bytes} bytes of the {project.max_bytes} it "
            f"may have, which leaves no room for {n_bytes} more: delete jobs, or ask for more"
        )
