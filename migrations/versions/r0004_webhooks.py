"""Webhooks, and the notifications that are to be sent to them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

_TIME = sa.DateTime(timezone=True)


def upgrade() -> None:
    """Make both tables."""
    op.create_table(
        "webhooks",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("project", sa.Text(), nullable=False, server_default="default"),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("states", sa.JSON(), nullable=False),
        sa.Column("created_at", _TIME, nullable=False),
        sa.Column("key_id", sa.Integer(), nullable=True),
        sa.Column("secret", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_webhooks"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_webhooks_project", "webhooks", ["project", "id"], unique=False)
    op.create_table(
        "deliveries",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("webhook_id", sa.Integer(), nullable=False),
        sa.Column("project", sa.Text(), nullable=False, server_default="default"),
        sa.Column("event_id", sa.Text(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("created_at", _TIME, nullable=False),
        sa.Column("not_before", _TIME, nullable=False),
        sa.Column("delivered_at", _TIME, nullable=True),
        sa.Column("last_status", sa.Integer(), nullable=True),
        sa.Column("last_error", sa.Text(), nullable=True),
        sa.Column("leased_until", _TIME, nullable=True),
        sa.CheckConstraint(
            "state IN ('dead', 'delivered', 'pending')", name="ck_deliveries_state"
        ),
        sa.ForeignKeyConstraint(
            ["webhook_id"],
            ["webhooks.id"],
            name="fk_deliveries_webhook_id_webhooks",
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name="pk_deliveries"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_deliveries_due", "deliveries", ["state", "not_before"], unique=False)
    op.create_index("ix_deliveries_webhook_id", "deliveries", ["webhook_id", "id"], unique=False)
