"""What a task's decisions are called, and the assembly of its best schedule."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns; tasks of before have neither."""
    op.add_column("tasks", sa.Column("decisions", sa.JSON(), nullable=True))
    op.add_column("tasks", sa.Column("assembly", sa.Text(), nullable=True))
