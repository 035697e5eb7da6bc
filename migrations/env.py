"""Alembic's entry: runs revisions on the connection that `server.database.schema` hands over."""

from __future__ import annotations

from alembic import context

_connection = context.config.attributes["connection"]

context.configure(
    connection=_connection,
    target_metadata=context.config.attributes.get("metadata"),
    transaction_per_migration=False,
    render_as_batch=_connection.dialect.name == "sqlite",
)
with context.begin_transaction():
    context.run_migrations()
