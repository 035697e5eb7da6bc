"""The version of the database's schema: refuse the wrong one, upgrade on request.

Nothing upgrades by itself: a server that meets another schema says which command does it.
"""

from __future__ import annotations

import functools
import pathlib

import alembic.command
import alembic.config
import alembic.runtime.migration
import alembic.script

import migrations
from server import errors
from server.database import database


def config() -> alembic.config.Config:
    """Alembic's configuration; a connection goes into its `attributes`."""
    made = alembic.config.Config()
    folder = str(pathlib.Path(migrations.__file__).parent)
    made.set_main_option("script_location", folder.replace("%", "%%"))
    return made


@functools.cache
def head() -> str:
    """The revision that this version works with."""
    revision = alembic.script.ScriptDirectory.from_config(config()).get_current_head()
    assert revision is not None
    return revision


def current(db: database.Database) -> str | None:
    """The revision of a database; None if it has no schema yet."""
    with db.engine.connect() as connection:
        return alembic.runtime.migration.MigrationContext.configure(
            connection
        ).get_current_revision()


def check(db: database.Database) -> None:
    """Refuse a database of another schema.

    Raises:
        SchemaMismatch: the message says which command to run.
    """
    revision, expected = current(db), head()
    if revision == expected:
        return
    known = {
        r.revision for r in alembic.script.ScriptDirectory.from_config(config()).walk_revisions()
    }
    if revision is not None and revision not in known:
        raise errors.SchemaMismatch(
            f"the database has schema {revision}, which is newer than this version of Felix "
            f"({expected}): update Felix"
        )
    state = "no schema yet" if revision is None else f"schema {revision}"
    raise errors.SchemaMismatch(
        f"the database has {state}, this version of Felix needs {expected}: run `felix db upgrade`"
    )


def upgrade(db: database.Database, revision: str = "head") -> None:
    """Bring a database to a revision, in one transaction."""
    made = config()
    with db.engine.execution_options(felix_write=True).begin() as connection:
        made.attributes["connection"] = connection
        alembic.command.upgrade(made, revision)
