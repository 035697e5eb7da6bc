"""Projects own keys, jobs and audit entries; what there is belongs to `default`."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

_TIME = sa.DateTime(timezone=True)


def upgrade() -> None:
    """Make the table and the columns; adding a column with a default copies no table."""
    projects = op.create_table(
        "projects",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("created_at", _TIME, nullable=False),
        sa.Column("max_running_jobs", sa.Integer(), nullable=True),
        sa.Column("max_trials", sa.Integer(), nullable=True),
        sa.Column("max_bytes", sa.BigInteger(), nullable=True),
        sa.Column("retention_days", sa.Integer(), nullable=True),
        sa.PrimaryKeyConstraint("name", name="pk_projects"),
    )
    for table in ("keys", "jobs", "audit"):
        op.add_column(
            table, sa.Column("project", sa.Text(), nullable=False, server_default="default")
        )
    op.create_index("ix_jobs_project", "jobs", ["project", "id"], unique=False)
    op.create_index("ix_artifacts_sha256", "artifacts", ["sha256"], unique=False)
    now = sa.select(sa.literal("default"), sa.func.current_timestamp())
    op.execute(projects.insert().from_select(["name", "created_at"], now))
