"""Families of tasks: one operator with other extents."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column; tasks that exist are of no family."""
    op.add_column("tasks", sa.Column("family", sa.Text(), nullable=True))
    op.create_index("ix_tasks_family", "tasks", ["family"])
