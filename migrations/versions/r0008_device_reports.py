"""Devices as their tuners last saw them: health, queue, errors, clock and power."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the table; tuners fill it."""
    op.create_table(
        "device_reports",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("worker_id", sa.Integer(), nullable=False),
        sa.Column("place", sa.Text(), nullable=False),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("target_key", sa.Text(), nullable=False),
        sa.Column("driver", sa.Text(), nullable=True),
        sa.Column("versions", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("fault", sa.Text(), nullable=True),
        sa.Column("queue", sa.Integer(), nullable=False),
        sa.Column("n_measured", sa.Integer(), nullable=False),
        sa.Column("n_failed", sa.Integer(), nullable=False),
        sa.Column("clock_ghz", sa.Double(), nullable=True),
        sa.Column("power_w", sa.Double(), nullable=True),
        sa.Column("seen_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["worker_id"],
            ["workers.id"],
            name="fk_device_reports_worker_id_workers",
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name="pk_device_reports"),
        sa.UniqueConstraint("worker_id", "place", name="uq_device_reports_worker_id_place"),
    )
