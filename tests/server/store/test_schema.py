"""Migrations: equal to the models, from every revision, and refused when they do not fit."""

from __future__ import annotations

import pathlib
from typing import Any

import alembic.script
import pytest
import sqlalchemy as sa

from server import errors
from server.database import database, models, schema
from tests.server import conftest
from tests.support import share

REVISIONS = [
    revision.revision
    for revision in alembic.script.ScriptDirectory.from_config(schema.config()).walk_revisions()
][::-1]


def described(db: database.Database) -> dict[str, Any]:
    """Everything about the tables that the database itself reports."""
    inspector = sa.inspect(db.engine)

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: plain(each) for key, each in sorted(value.items()) if key != "comment"}
        if isinstance(value, list | tuple):
            return [plain(each) for each in value]
        return value if isinstance(value, bool | int | None) else str(value)

    def by_name(items: Any) -> list[Any]:
        return sorted((plain(each) for each in items), key=lambda each: str(each["name"]))

    tables = {}
    for name in sorted(set(inspector.get_table_names()) - {"alembic_version"}):
        tables[name] = {
            "columns": by_name(inspector.get_columns(name)),
            "primary key": plain(inspector.get_pk_constraint(name)),
            "foreign keys": by_name(inspector.get_foreign_keys(name)),
            "unique": by_name(inspector.get_unique_constraints(name)),
            "checks": by_name(inspector.get_check_constraints(name)),
            "indexes": by_name(inspector.get_indexes(name)),
        }
    if db.is_sqlite:
        with db.engine.connect() as connection:
            rows = connection.exec_driver_sql("SELECT name, sql FROM sqlite_master").all()
        tables["autoincrement"] = sorted(n for n, sql in rows if "AUTOINCREMENT" in (sql or ""))
    return tables


@pytest.fixture
def bare(url: str) -> database.Database:
    """A database without tables."""
    opened = database.Database(url)
    if not opened.is_sqlite:
        conftest.drop_all(opened)
    return opened


def test_all_revisions_together_make_the_models(bare: database.Database) -> None:
    schema.upgrade(bare)
    migrated = described(bare)
    if bare.is_sqlite:
        with bare.engine.begin() as connection:
            for table in reversed(models.Base.metadata.sorted_tables):
                connection.execute(sa.schema.DropTable(table))
    else:
        conftest.drop_all(bare)
    models.Base.metadata.create_all(bare.engine)
    assert described(bare) == migrated
    assert len(migrated) >= len(models.Base.metadata.tables)


@pytest.mark.parametrize("revision", share.of(REVISIONS, 2))
def test_upgrade_from_every_revision(bare: database.Database, revision: str) -> None:
    schema.upgrade(bare, revision)
    assert schema.current(bare) == revision
    schema.upgrade(bare)
    schema.check(bare)
    upgraded = described(bare)
    if not bare.is_sqlite:
        conftest.drop_all(bare)
        schema.upgrade(bare)
        assert described(bare) == upgraded


def test_a_revision_only_adds_so_the_version_before_goes_on(bare: database.Database) -> None:
    schema.upgrade(bare, REVISIONS[0])
    before = tables(bare)
    for revision in REVISIONS[1:]:
        schema.upgrade(bare, revision)
        after = tables(bare)
        for table, parts in before.items():
            assert in_the_way(parts, after[table]) == [], f"{revision}: {table}"
        before = after


def tables(db: database.Database) -> dict[str, Any]:
    every = described(db)
    every.pop("autoincrement", None)
    return every


def in_the_way(before: dict[str, Any], after: dict[str, Any]) -> list[Any]:
    """What a version that knows a table as it was lacks, or what may refuse its rows."""
    if before["primary key"] != after["primary key"]:
        return [after["primary key"]]
    found = []
    for part in set(before) - {"primary key"}:
        found += [each for each in before[part] if each not in after[part]]
        found += [
            each for each in after[part] if each not in before[part] and not is_harmless(each)
        ]
    return found


def is_harmless(new: dict[str, Any]) -> bool:
    """A column that may be left out, or an index that refuses nothing; no other rule."""
    if "nullable" in new:
        return bool(new["nullable"]) or new["default"] not in (None, "None")
    return new.get("unique") in (False, 0)


def test_another_schema_is_refused_with_the_command(bare: database.Database) -> None:
    with pytest.raises(errors.SchemaMismatch, match=r"no schema yet.*`felix db upgrade`"):
        schema.check(bare)
    schema.upgrade(bare)
    schema.check(bare)
    schema.upgrade(bare)  # twice does no harm
    with bare.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = '9999'")
    with pytest.raises(errors.SchemaMismatch, match=r"9999.*newer.*update Felix"):
        schema.check(bare)


def test_an_upgrade_is_all_or_nothing(
    bare: database.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("broken in the middle")

    monkeypatch.setattr("alembic.op.create_index", fail)
    with pytest.raises(RuntimeError):
        schema.upgrade(bare)
    assert sa.inspect(bare.engine).get_table_names() == []


def test_a_folder_with_odd_characters(tmp_path: pathlib.Path) -> None:
    opened = database.Database(f"sqlite:///{tmp_path / 'new folder 100%' / 'felix.db'}")
    schema.upgrade(opened)
    schema.check(opened)
    opened.close()
