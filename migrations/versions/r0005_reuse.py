"""Reuse of measurements, what ships of a task, templates, batches, imported schedules."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

_TIME = sa.DateTime(timezone=True)


def upgrade() -> None:
    """Add the columns and tables."""
    op.add_column("jobs", sa.Column("reused_from", sa.Integer(), nullable=True))
    op.add_column("jobs", sa.Column("versions", sa.JSON(none_as_null=True), nullable=True))
    op.add_column(
        "jobs", sa.Column("n_unscheduled", sa.Integer(), nullable=False, server_default="0")
    )
    op.add_column("tasks", sa.Column("program_key", sa.Text(), nullable=True))
    op.add_column("tasks", sa.Column("reused_from", sa.Integer(), nullable=True))
    op.add_column(
        "tasks", sa.Column("settled", sa.Boolean(), nullable=False, server_default=sa.false())
    )
    op.add_column(
        "tasks",
        sa.Column("ships_unscheduled", sa.Boolean(), nullable=False, server_default=sa.false()),
    )
    op.create_index("ix_tasks_program_key", "tasks", ["program_key"])
    _create_tables()


def _create_tables() -> None:
    op.create_table(
        "templates",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("key_id", sa.Integer(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("job", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("created_at", _TIME, nullable=False),
        sa.ForeignKeyConstraint(
            ["key_id"], ["keys.id"], name="fk_templates_key_id_keys", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_templates"),
        sa.UniqueConstraint("key_id", "name", name="uq_templates_key_id_name"),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "batches",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("key_id", sa.Integer(), nullable=False),
        sa.Column("idempotency_key", sa.Text(), nullable=True),
        sa.Column("request_sha256", sa.Text(), nullable=False),
        sa.Column("items", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("created_at", _TIME, nullable=False),
        sa.ForeignKeyConstraint(
            ["key_id"], ["keys.id"], name="fk_batches_key_id_keys", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_batches"),
        sa.UniqueConstraint("key_id", "idempotency_key", name="uq_batches_key_id_idempotency_key"),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "imported_schedules",
        sa.Column("job_id", sa.Integer(), nullable=False),
        sa.Column("task", sa.Integer(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("signature", sa.Text(), nullable=False),
        sa.Column("decisions", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("latency_us", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(
            ["job_id"], ["jobs.id"], name="fk_imported_schedules_job_id_jobs", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("job_id", "task", "number", name="pk_imported_schedules"),
    )
