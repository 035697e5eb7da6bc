"""Keys share the tuners: what each had of them lately, and the scope for priority."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns, without making the table anew; keys that exist may not ask for priority."""
    for column in (
        sa.Column("can_priority", sa.Boolean(), nullable=False, server_default=sa.false()),
        sa.Column("tuner_s", sa.Double(), nullable=False, server_default=sa.text("0")),
        sa.Column("tuner_s_at", sa.DateTime(timezone=True), nullable=True),
    ):
        op.add_column("keys", column)
