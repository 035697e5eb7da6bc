"""Networks that jobs put together: their groups, what ships of each, what a call takes."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the table; jobs that exist have no network."""
    op.create_table(
        "networks",
        sa.Column("job_id", sa.Integer(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("groups", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("call_us", sa.Double(), nullable=True),
        sa.Column("max_error", sa.Double(), nullable=True),
        sa.Column("failure", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(
            ["job_id"], ["jobs.id"], name="fk_networks_job_id_jobs", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("job_id", name="pk_networks"),
    )
